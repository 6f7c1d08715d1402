#!/usr/bin/env bash
# Measures what embedding caches and encode workers save, for real fleets of engine tiny and in the simulator, and how
# fast rows are copied out of another worker's memory, and writes bench/results/DATE-COMMIT-embeddings.json. On two quiet
# cores the fleets take about 5 minutes, the simulator and the copies less than one each. Flags go to bench/embeddings.
#
#   tools/bench/embeddings.sh
#   tools/bench/embeddings.sh -only simulated
#   tools/bench/embeddings.sh -only region
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock
go build -o "$tmp/embeddings" ./bench/embeddings
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-embeddings.json"
"$tmp/embeddings" -bin "$tmp/penstock" -json "$@" >"$tmp/out"
mv "$tmp/out" "$out"
echo "$out"
