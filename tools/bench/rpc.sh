#!/usr/bin/env bash
# Measures streams of token deltas over the TCP request plane beside grpc-go, in
# one run: a serving and a calling process over the loopback interface, 1 to
# 10,000 streams on one connection, as fast as they go and at the pace of an
# engine. It writes bench/results/DATE-COMMIT-rpc.json. Nothing else should run
# meanwhile; it takes about two minutes.
#
#   tools/bench/rpc.sh [-streams 1,100,1000,10000] [-for 3s]
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
(cd bench/rpc && go build -o "$tmp/rpc" .)
"$tmp/rpc" "$@" | tee "$tmp/out" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-rpc.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
