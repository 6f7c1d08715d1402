#!/usr/bin/env bash
# Measures what routing by pictures costs (their size, key, tokens and hashes, for 1, 4 and 10 of them, beside the
# standard library) and gives (a pool of 1,024 pictures, routed by cache and by turns), and writes
# bench/results/DATE-COMMIT-media.json. It takes about 4 minutes, and wants a quiet machine. Flags go to bench/media.
#
#   tools/bench/media.sh
#   tools/bench/media.sh -only path -each 3s
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock
go build -o "$tmp/media" ./bench/media
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-media.json"
"$tmp/media" -bin "$tmp/penstock" -json "$@" >"$tmp/out"
mv "$tmp/out" "$out"
echo "$out"
