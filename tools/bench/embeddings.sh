#!/usr/bin/env bash
# Measures what embedding caches, workers which ask one another and encode workers save, for real fleets of engine tiny
# and in the simulator, in one run: encoder runs, throughput and time to the first token, also of pictures which eight
# workers miss at once. And how fast rows are copied out of another worker's memory. It writes
# bench/results/DATE-COMMIT-embeddings.json. On two quiet cores the fleets take about 10 minutes, the simulator and the
# copies about one each; after two hours it gives up. Flags go to bench/embeddings.
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
