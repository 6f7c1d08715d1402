#!/usr/bin/env bash
# Measure what Penstock costs in front of an engine that costs nothing, beside the engine
# asked directly and behind the standard library's reverse proxy, in one run: bench/gateway says
# what and how. The model is Llama 3's tokenizer and template; run tools/fixtures/check_real.sh
# first, with the same DIR: it fetches them. Nothing else should run meanwhile; it takes about
# three minutes. Writes bench/results/DATE-COMMIT-gateway.json.
#
#   tools/bench/gateway.sh [DIR [ARGUMENT…]]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-/tmp/checkreal}
shift || true
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
tools/bench/llama3.sh "$dir" "$tmp/llama3"
# English: the comments of Go's own sources.
find "$(go env GOROOT)/src" -type f -name '*.go' | LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat | sed -n 's|^// \(.*\)|\1|p' >"$tmp/text"
go build -o "$tmp/penstock" ./cmd/penstock
go build -o "$tmp/gateway" ./bench/gateway
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-gateway.json"
"$tmp/gateway" -bin "$tmp/penstock" -model "$tmp/llama3" -text "$tmp/text" -json "$@" >"$tmp/out"
mv "$tmp/out" "$out"
echo "$out"
