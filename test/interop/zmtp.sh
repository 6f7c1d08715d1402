#!/usr/bin/env bash
# Holds penstock/internal/zmtp against libzmq, both ways, and has libzmq follow the events of
# an embedding cache: once with the one that pyzmq from PyPI brings, and once with Debian's
# (python3-zmq), where the machine can install it. Then the publisher of sdk/python, its types
# checked, against a router. Usage: test/interop/zmtp.sh; it builds
# penstock unless PENSTOCK_BINARY names one.
# Exits with 77, and says why, if no libzmq could be had.
set -euo pipefail
cd "$(dirname "$0")/zmtp"
root="$(cd ../../.. && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

pythons=() missing=() sdk=""
if { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q --no-compile --disable-pip-version-check pyzmq==27.1.0; } >"$work/pip.log" 2>&1; then
  pythons+=("$work/venv/bin/python")
else
  missing+=("pyzmq 27.1.0 from PyPI: $(tail -1 "$work/pip.log")")
fi
# The package is built from a copy, because building writes beside its sources.
cp -r "$root/sdk/python" "$work/sdk"
if [ "${#pythons[@]}" -gt 0 ] && "${pythons[0]}" -m pip install -q --no-compile --disable-pip-version-check mypy==1.18.2 "$work/sdk" >"$work/sdk.log" 2>&1; then
  sdk="${pythons[0]}"
else
  missing+=("the publisher of sdk/python: $(tail -1 "$work/sdk.log" 2>/dev/null || echo "no Python with pyzmq")")
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
  PENSTOCK_ZMQ_PYTHON="$python" go test -count=1 -v . | grep -v '^=== '
done
if [ -n "$sdk" ]; then
  (cd "$root/sdk/python" && "$sdk" -B -m mypy --cache-dir="$work/mypy")
  PENSTOCK_SDK_PYTHON="$sdk" go test -count=1 -v ./sdk | grep -v -e '^=== ' -e level=INFO
fi
