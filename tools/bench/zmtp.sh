#!/usr/bin/env bash
# Measures how fast our ZeroMQ subscriber receives beside libzmq through cgo
# (pebbe/zmq4), in one run: from libzmq's publisher and from ours, messages of three
# parts with 200 B, 2 kB and 20 kB, none lost. It writes
# bench/results/DATE-COMMIT-zmtp.json. Nothing else should run meanwhile; it takes
# about a minute. libzmq's headers, pkg-config and a C compiler are installed where
# they are missing (Debian).
#
#   tools/bench/zmtp.sh [-rounds 5] [-sizes 200,2000,20000]
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! pkg-config --exists libzmq 2>/dev/null || ! command -v cc >/dev/null; then
  if ! command -v apt-get >/dev/null; then
    echo "no libzmq with headers, or no pkg-config, or no C compiler, and no apt-get: install them" >&2
    exit 1
  fi
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libzmq3-dev pkg-config gcc libc6-dev; } >&2
fi
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
(cd bench/zmtp && CGO_ENABLED=1 go build -o "$tmp/zmtp" .)
"$tmp/zmtp" "$@" | tee "$tmp/out" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-zmtp.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
