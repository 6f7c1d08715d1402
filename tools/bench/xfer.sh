#!/usr/bin/env bash
# Measures the transfer plane between two processes: shared memory beside a plain loop of copy, digest, copy and
# beside memcpy; TCP over loopback beside a bare Go TCP stream and iperf3; the latency of a small transfer alone and
# beside 16 bulk ones; digests. All in one run and in turns. It writes bench/results/DATE-COMMIT-xfer.json, takes a
# minute, and wants a quiet machine. It installs iperf3 where apt-get is. Flags go to bench/xfer.
#
#   tools/bench/xfer.sh
#   tools/bench/xfer.sh -rounds 15 -each 1s
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v iperf3 >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iperf3 >&2
fi
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/xfer" ./bench/xfer
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-xfer.json"
"$tmp/xfer" -json "$@" >"$tmp/out"
mv "$tmp/out" "$out"
echo "$out"
