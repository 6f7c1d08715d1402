#!/usr/bin/env bash
# Holds the transport over UCX (build tag ucx) against Debian's UCX: the conformance suite with the transports which
# UCX chooses by itself and over TCP alone, faulty and paused writers, transfers between processes of which one is
# killed, 128 times (-short: 32), and rates beside those of the transport over TCP. It prints what was measured, and
# which devices UCX has here: without RDMA hardware nothing about RDMA was tried.
# Usage: test/interop/ucx/run.sh [-short]; the short form is for CI, and does not build the product.
# It installs libucx-dev and a C compiler, where the machine can. Exits with 77, and says why, if UCX cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../../.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
kills=4 short=""
[ "${1:-}" = -short ] && kills=1 short=yes

has_ucx() { [ -e /usr/include/ucp/api/ucp.h ] && command -v cc >/dev/null; }
if ! has_ucx && command -v apt-get >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libucx-dev ucx-utils gcc libc6-dev; } \
    >"$work/apt.log" 2>&1 || true
fi
if ! has_ucx; then
  echo "SKIPPED: nothing was tried with UCX: $(tail -1 "$work/apt.log" 2>/dev/null || echo "no libucx-dev, and no apt-get")"
  exit 77
fi

build() { CGO_ENABLED=1 go test -tags ucx "$@"; }
build -c -o "$work/xfer.test" ./internal/plane/xfer
build -c -o "$work/ucx.test" ./internal/plane/xfer/ucx
CGO_ENABLED=1 go vet -tags ucx ./internal/plane/xfer/...
[ -n "$short" ] || CGO_ENABLED=1 go build -trimpath -tags ucx -o "$work/penstock" ./cmd/penstock
cd internal/plane/xfer # the tests read testdata

devices="$(ucx_info -d 2>/dev/null | sed -n 's/.*Transport: *//p' | sort | uniq | tr '\n' ' ')" || true
echo "UCX $(ucx_info -v 2>/dev/null | sed -n 's/.*[Vv]ersion[=: ]*\([0-9.]*\).*/\1/p' | head -1): transports of this machine: ${devices:-unknown}"
case "$devices" in *rc_* | *dc_* | *ud_*) ;; *) echo "SKIPPED: RDMA: there is no hardware" ;; esac

# run PATTERN... runs tests.
run() {
  "$work/xfer.test" -test.run "$@" -test.v >"$work/log" || { grep -v '^=== ' "$work/log"; exit 1; }
  grep '^--- \|killed:\|expired$' "$work/log"
}
# suite runs the conformance suite, and writers which are faulty or paused.
suite() {
  echo "== conformance, faulty and paused writers, tokens: UCX_TLS=${UCX_TLS:-all}"
  run '^(TestUCX|TestFastest|TestTokens)'
  run '^(TestFaultyWriters|TestPausedWriter)$/^ucx$'
}
"$work/ucx.test"
suite
[ -n "$short" ] || UCX_TLS=tcp,self suite
echo "== processes which are killed: $((32 * kills)) kills, 32 transfers in progress at each"
run '^TestKilled$/^ucx$' -test.count "$kills"
echo "== rates, digests included, both ends in one process; TCP beside it in the same run"
"$work/xfer.test" -test.run '^$' -test.bench UCX -test.benchtime 300ms | grep '^Benchmark'
