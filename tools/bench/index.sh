#!/usr/bin/env bash
# Measures core/prefix beside a bare table of bitmaps that holds and is asked the same, in
# one process, then holds a whole replay against an oracle and applies 10 million events
# with churn. docs/index.md says what the figures mean. It writes
# bench/results/DATE-COMMIT-index.json and fails if an answer is not the oracle's or
# memory does not come back. Nothing else should run meanwhile; it takes some ten minutes and
# up to 8 GB of memory.
#
#   tools/bench/index.sh                           # a workload that is made up
#   tools/bench/index.sh mooncake.jsonl            # a trace
#   tools/bench/index.sh mooncake.jsonl -workers 64 -for 3s
set -euo pipefail
args=("$@")
name=
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  args=(-trace "$(realpath "$1")" "${@:2}")
  name=-trace
fi
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/index" ./bench/index
{
  sed -n 's/^model name\s*: /cpu: /p' /proc/cpuinfo | head -1
  "$tmp/index" "${args[@]}"
} | tee "$tmp/out" >&2
"$tmp/index" "${args[@]}" -check >&2
"$tmp/index" -churn 10000000 >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-index$name.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
