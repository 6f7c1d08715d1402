#!/usr/bin/env bash
# Runs the kept benchmarks and the latency measurement and writes them to
# bench/results/DATE-COMMIT.json. Run it on a quiet machine:
#   bench/run.sh            # the plain build
#   GOEXPERIMENT=simd bench/run.sh
set -euo pipefail
cd "$(dirname "$0")/.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock
packages="$(grep -rlE '^func Benchmark' --include='*_test.go' core internal | xargs -n1 dirname | sort -u | sed 's#^#./#')"
# shellcheck disable=SC2086
go test -run '^$' -bench . -benchtime "${BENCHTIME:-300ms}" $packages | tee "$tmp/out" >&2
go run ./test/latency -bin "$tmp/penstock" -json | tee -a "$tmp/out" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)${GOEXPERIMENT:+-$GOEXPERIMENT}.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
