#!/usr/bin/env bash
# Measure how fast the cache events of 64 engines get into one router: bench/feeds says what
# and how. The tokenizer is Llama 3's; run tools/fixtures/check_real.sh first, with the same
# DIR. Nothing else should run meanwhile; it takes about two minutes. Writes
# bench/results/DATE-COMMIT-feeds.json.
#
#   tools/bench/feeds.sh [DIR [ARGUMENT…]]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-/tmp/checkreal}
shift || true
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
tools/bench/llama3.sh "$dir" "$tmp/llama3"
go build -o "$tmp/penstock" ./cmd/penstock
go build -o "$tmp/feeds" ./bench/feeds
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-feeds.json"
"$tmp/feeds" -bin "$tmp/penstock" -model "$tmp/llama3" -json "$@" >"$tmp/out"
mv "$tmp/out" "$out"
echo "$out"
