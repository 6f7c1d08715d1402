#!/usr/bin/env bash
# Starts Penstock and holds the official OpenAI clients against it.
# Usage: test/interop/run.sh [PENSTOCK_BINARY]; without one it builds it.
# Needs Go; Python is installed if the machine can (Debian), else that part is
# left out and said so.
set -euo pipefail
cd "$(dirname "$0")"
work="$(mktemp -d)"
pid=""
cleanup() {
  if [ -n "$pid" ]; then kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

bin="${1:-}"
if [ -z "$bin" ]; then
  bin="$work/penstock"
  (cd ../.. && go build -o "$bin" ./cmd/penstock)
fi

# One JSON line on standard output says that it is ready, and where.
mkfifo "$work/ready"
"$bin" up --http-addr 127.0.0.1:0 --json >"$work/ready" 2>"$work/log" &
pid=$!
read -r -t 60 line <"$work/ready" || { echo "penstock did not start:"; cat "$work/log"; exit 1; }
export PENSTOCK_URL
PENSTOCK_URL="$(printf '%s' "$line" | sed -n 's/.*"url":"\([^"]*\)".*/\1/p')"
echo "penstock at $PENSTOCK_URL"

echo "--- openai-go"
go test -count=1 ./...

echo "--- openai (Python)"
if ! python3 -m venv "$work/venv" >/dev/null 2>&1; then
  if command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null
  fi
fi
if python3 -m venv "$work/venv" >/dev/null 2>&1; then
  "$work/venv/bin/pip" install -q --disable-pip-version-check -r python/requirements.txt
  "$work/venv/bin/python" python/conversation.py "$PENSTOCK_URL"
else
  echo "SKIPPED: the Python client was not tested: no python3 with venv, and no apt-get to install it"
fi

kill -INT "$pid"
wait "$pid" && code=0 || code=$?
pid=""
[ "$code" = 0 ] || { echo "penstock exited $code after an interrupt:"; cat "$work/log"; exit 1; }
echo "interop passed"
