#!/usr/bin/env bash
# Measures what it costs that requests travel between processes: time to first
# token, time per token and requests per second through a frontend, a worker and a
# process with NATS, beside one process that is all of them, in one run. Writes
# bench/results/DATE-COMMIT-planes.json.
#
#   tools/bench/planes.sh [flags of test/planes, such as -request-plane http]
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock
{
	sed -n 's/^model name\s*: /cpu: /p' /proc/cpuinfo | head -1
	go run ./test/planes -bin "$tmp/penstock" "$@"
} | tee "$tmp/out" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-planes.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
