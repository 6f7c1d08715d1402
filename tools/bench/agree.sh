#!/usr/bin/env bash
# Holds the simulation in virtual time against the same engines in real time: single
# requests beside the formulas of docs/sim.md, then a workload through "penstock bench"
# against "penstock up --engine sim" and through "penstock replay", for each policy.
# Prints both side by side, writes bench/results/DATE-COMMIT-agree.json, and fails if a
# mean time to the first token is further off than 10 % or a cached share further than 2
# points.
#
#   tools/bench/agree.sh                                       # a workload that is made up
#   tools/bench/agree.sh mooncake.jsonl -requests 2000 -speedup 4
#   tools/bench/agree.sh mooncake.jsonl -workers 8,64 -policies kv
#
# Real time needs a processor at the right moment. Where it may, the script runs
# server and client before everything else on the machine (chrt, nice).
set -euo pipefail
args=("$@")
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  args=(-trace "$(realpath "$1")" "${@:2}")
fi
cd "$(dirname "$0")/../.."
under=
for prefix in "chrt -f 1" "nice -n -10"; do
  # shellcheck disable=SC2086
  if $prefix true 2>/dev/null; then
    under=$prefix
    break
  fi
done
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock
go build -o "$tmp/agree" ./bench/agree
status=0
{
  sed -n 's/^model name\s*: /cpu: /p' /proc/cpuinfo | head -1
  "$tmp/agree" -bin "$tmp/penstock" -under "$under" "${args[@]}" || status=$?
  echo "$status" >"$tmp/status"
} | tee "$tmp/out" >&2
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-agree.json"
go run ./tools/benchjson <"$tmp/out" >"$out"
echo "$out"
exit "$(cat "$tmp/status")"
