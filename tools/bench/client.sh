#!/usr/bin/env bash
# Measures the load generator of "penstock bench" itself, in one run: requests/s and
# tokens/s that it drives against a bare net/http server, beside wrk (Debian's, which
# is installed if it is not there) with the same requests, and by how much the moments
# that it measures in 200 streams are off those of the server. It writes
# bench/results/DATE-COMMIT-client.json. Nothing else should run meanwhile; it takes
# about half a minute.
#
#   tools/bench/client.sh [-streams 200] [-for 4s]
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v wrk >/dev/null 2>&1; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends wrk
fi
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/client" ./bench/client
{
  sed -n 's/^model name\s*: /cpu: /p' /proc/cpuinfo | head -1
  "$tmp/client" "$@"
} | tee "$tmp/out" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-client.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
