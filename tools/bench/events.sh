#!/usr/bin/env bash
# Measures on one core what engines' cache events cost: reading a store of 32 blocks of 16 tokens beside a decoder
# that makes values of everything; that with our hashes, the table of the engine's blocks and a router's index
# behind it, in blocks a second; describing a cache of a million blocks; and the memory of a block. It writes
# bench/results/DATE-COMMIT-events.json. Nothing else should run meanwhile; it takes about a minute.
#
#   tools/bench/events.sh [-count 5]
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go test -run '^$' -bench . "$@" ./core/engineevents | tee "$tmp/out" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-events.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
