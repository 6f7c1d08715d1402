#!/usr/bin/env bash
# Measures one router beside two, which know of their own requests alone or tell each
# other, over 64 simulated workers, all of them processes, and writes
# bench/results/DATE-COMMIT-replicas.json. It takes about 4 minutes, and wants a quiet
# machine. Flags go to bench/replicas.
#
#   tools/bench/replicas.sh
#   tools/bench/replicas.sh -workers 16 -requests 500
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock
go build -o "$tmp/replicas" ./bench/replicas
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-replicas.json"
"$tmp/replicas" -bin "$tmp/penstock" -json "$@" >"$tmp/out"
mv "$tmp/out" "$out"
echo "$out"
