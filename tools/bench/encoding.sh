#!/usr/bin/env bash
# Measures what the lifecycle of media in requests costs and what memory it holds: submit, merge and staging on one core,
# beside published bounds and a plain loop of copies; then 100 videos of 125 MB of rows, and 64 requests, within budgets.
# All in one run. It writes bench/results/DATE-COMMIT-encoding.json, takes a minute, and wants a quiet machine with 2 GB
# of free memory. Flags go to bench/encoding.
#
#   tools/bench/encoding.sh
#   tools/bench/encoding.sh -cpu 2000000000 -staging 1000000000
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/encoding" ./bench/encoding
GOMAXPROCS=1 go test -run '^$' -bench '^Benchmark(Submit|Merge|Stage)$' -benchtime "${BENCHTIME:-1s}" \
  ./core/encode ./internal/engine/tiny ./internal/engine/tiny/model | tee "$tmp/benchmarks" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-encoding.json"
status=0
"$tmp/encoding" -benchmarks "$tmp/benchmarks" -json "$@" >"$tmp/out" || status=$?
mv "$tmp/out" "$out"
echo "$out"
exit "$status"
