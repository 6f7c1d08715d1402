#!/usr/bin/env bash
# Holds Penstock against a real nats-server that is too old, Debian's (2.9 or 2.10):
# every role ends at once with 1 and says what to do, and doctor fails likewise.
# Usage: test/interop/nats.sh PENSTOCK_BINARY
# Exits with 77, and says why, if no such server could be had.
set -euo pipefail
unset "${!PENSTOCK_@}" # run.sh tells clients of its servers by such names, which are no settings
bin="$(realpath "$1")"
work="$(mktemp -d)"
pid=""
cleanup() {
  [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
  wait || true
  rm -rf "$work"
}
trap cleanup EXIT

# The package is unpacked and not installed: it would start a server as a service.
fetch() {
  command -v apt-get && apt-get update -qq && cd "$work" && apt-get -o APT::Sandbox::User=root download nats-server && dpkg -x nats-server_*.deb "$work/package"
}
server="$work/package/usr/bin/nats-server"
(fetch) >"$work/apt.log" 2>&1 || true
[ -x "$server" ] || server="$work/package/usr/sbin/nats-server"
if [ ! -x "$server" ]; then
  echo "SKIPPED: Debian's package nats-server: $(tail -1 "$work/apt.log" | grep . || echo "no apt-get")"
  exit 77
fi
version="$("$server" --version | sed 's/^nats-server: v//')"
case "$version" in
2.[0-9].* | 2.10.*) ;;
*)
  echo "SKIPPED: Debian's nats-server is $version, which is not too old"
  exit 77
  ;;
esac

# A port of -1 is a free one, which the server writes down.
"$server" -a 127.0.0.1 -p -1 -js -sd "$work/js" --ports_file_dir "$work" >"$work/nats.log" 2>&1 &
pid=$!
for _ in $(seq 100); do
  ports="$(echo "$work"/*.ports)"
  [ -s "$ports" ] && break
  sleep 0.1
done
url="$(sed -n 's/.*"\(nats:[^"]*\)".*/\1/p' "$ports")"
echo "nats-server $version at $url"

# refuses COMMAND… runs a command that must end with 1 and name the version and
# the remedy.
refuses() {
  local code=0
  timeout 20 "$bin" "$@" >"$work/out" 2>&1 || code=$?
  if [ "$code" != 1 ] || ! grep -q "version $version" "$work/out" || ! grep -q -- "2.11 or newer.*--nats-listen" "$work/out"; then
    echo "FAILED: penstock $* ended with $code and said:"
    cat "$work/out"
    exit 1
  fi
  echo "penstock $1: $(grep -m1 "version $version" "$work/out")"
}
refuses frontend --http-addr 127.0.0.1:0 --nats "$url"
refuses worker --engine sim --nats "$url"
refuses router --nats "$url"
refuses doctor --for worker --nats "$url"
