#!/usr/bin/env bash
# Starts Penstock with small caches, which fill soon, and holds clients on it.
# Usage: test/soak/run.sh PENSTOCK_BINARY [flags of test/soak, such as -for 60s]
set -euo pipefail
cd "$(dirname "$0")/../.."
bin="$1"
shift
work="$(mktemp -d)"
pid=""
cleanup() {
  if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT
mkfifo "$work/ready"
"$bin" up --http-addr 127.0.0.1:0 --json --kv-cache-blocks 512 >"$work/ready" 2>"$work/log" &
pid=$!
read -r -t 60 line <"$work/ready" || { echo "penstock did not start:"; cat "$work/log"; exit 1; }
url="$(printf '%s' "$line" | sed -n 's/.*"url":"\([^"]*\)".*/\1/p')"
go run ./test/soak -url "$url" "$@"
