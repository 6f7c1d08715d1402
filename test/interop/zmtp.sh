#!/usr/bin/env bash
# Holds penstock/internal/zmtp against libzmq, both ways, and has libzmq follow the events of
# an embedding cache: once with the one that pyzmq from PyPI brings, and once with Debian's
# (python3-zmq), where the machine can install it. Then sdk/python, its types checked: its
# publisher against a router, its client against "penstock up", and its wheel. Then the publisher
# of sdk/c, under valgrind. Usage: test/interop/zmtp.sh; it builds penstock unless PENSTOCK_BINARY
# names one. PENSTOCK_ROUTER_DOCUMENT is that of python/sdk_scripts.py.
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
  missing+=("sdk/python: $(tail -1 "$work/sdk.log" 2>/dev/null || echo "no Python with pyzmq")")
fi
# The publisher in C takes libzmq's header, a compiler and valgrind.
c_tools() {
  local program
  for program in cc make valgrind pkg-config; do command -v "$program" >/dev/null || return 1; done
  pkg-config --exists libzmq
}
if ! c_tools && command -v apt-get >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev make pkg-config valgrind libzmq3-dev; } >"$work/c.log" 2>&1 || true
fi
c_tools || missing+=("the publisher of sdk/c: $(tail -1 "$work/c.log" 2>/dev/null || echo "no apt-get")")
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
test_publisher() { PENSTOCK_SDK_PUBLISHER="$*" go test -count=1 -v ./sdk | grep -v -e '^=== ' -e level=INFO; }
if [ -n "$sdk" ]; then
  (cd "$root/sdk/python" && "$sdk" -B -m mypy --cache-dir="$work/mypy" && "$sdk" -B -m unittest discover tests)
  test_publisher "$sdk" -B publisher.py
  PYTHON="$sdk" "$root/tools/wheel.sh" "$work/wheel"
  PYTHONPATH="$root/sdk/python/tests" "$sdk" -B ../python/sdk_scripts.py "$work"/wheel/penstock-*.whl
fi
if c_tools; then
  valgrind=(valgrind -q --error-exitcode=1 --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=all)
  make -s -C "$root/sdk/c" OUT="$work/c" PREFIX="$work/prefix" RUN="${valgrind[*]}" CFLAGS="-O1 -g -Werror" check example install
  read -ra flags < <(PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" pkg-config --cflags --libs penstock-kv)
  cc -std=c11 -Wall -Wextra -Werror -O1 -g -o "$work/publisher" sdk/c/publisher.c "${flags[@]}"
  test_publisher "${valgrind[@]}" "$work/publisher"
fi
