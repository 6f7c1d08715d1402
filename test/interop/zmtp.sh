#!/usr/bin/env bash
# Holds penstock/internal/zmtp against libzmq, both ways, and has libzmq follow the events of
# an embedding cache: once with the one that pyzmq from PyPI brings, and once with Debian's
# (python3-zmq), where the machine can install it. Usage: test/interop/zmtp.sh; it builds
# penstock unless PENSTOCK_BINARY names one.
# Exits with 77, and says why, if no libzmq could be had.
set -euo pipefail
cd "$(dirname "$0")/zmtp"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

pythons=() missing=()
if { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check pyzmq==27.1.0; } >"$work/pip.log" 2>&1; then
  pythons+=("$work/venv/bin/python")
else
  missing+=("pyzmq 27.1.0 from PyPI: $(tail -1 "$work/pip.log")")
fi
system() { /usr/bin/python3 -c 'import zmq' 2>/dev/null; }
if ! system && command -v apt-get >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-zmq; } >"$work/apt.log" 2>&1 || true
fi
if system; then
  pythons+=(/usr/bin/python3)
else
  missing+=("python3-zmq of the system: $(tail -1 "$work/apt.log" 2>/dev/null || echo "no apt-get")")
fi

if [ -z "${PENSTOCK_BINARY:-}" ]; then
  (cd ../../.. && go build -o "$work/penstock" ./cmd/penstock)
  export PENSTOCK_BINARY="$work/penstock"
fi
for what in "${missing[@]}"; do echo "SKIPPED: $what"; done
[ "${#pythons[@]}" -gt 0 ] || exit 77
for python in "${pythons[@]}"; do
  PENSTOCK_ZMQ_PYTHON="$python" go test -count=1 -v ./... | grep -v '^=== '
done
