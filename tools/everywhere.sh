#!/usr/bin/env bash
# Holds replay to its promise that a seed gives the same bytes on any machine: runs it here
# and on emulated processors of other kinds (all of which have an instruction that multiplies
# and adds with one rounding, and one the other order of bytes), and compares JSON, CSV and
# HTML.
#
#   tools/everywhere.sh [GOARCH...]      arm64 s390x ppc64le
#
# Needs qemu's user mode (Debian: qemu-user-static); QEMU=DIR says where it is if not on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
archs=("$@")
[ $# -gt 0 ] || archs=(arm64 s390x ppc64le)
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT

# replay ARCH NAME FLAG... runs the binary for ARCH and keeps what it writes.
replay() {
  local arch="$1" name="$tmp/$1/$2"
  shift 2
  if ! $under "$tmp/penstock-$arch" replay --seed 7 "$@" --json --csv "$name.csv" --report "$name.html" >"$name.json" 2>"$tmp/err"; then
    cat "$tmp/err" >&2
    exit 1
  fi
}

# runs ARCH builds for ARCH and replays traffic that draws all there is to draw.
runs() {
  CGO_ENABLED=0 GOARCH="$1" go build -trimpath -o "$tmp/penstock-$1" ./cmd/penstock
  mkdir "$tmp/$1"
  replay "$1" chat --generate chat:requests=120,rate=2,turns=4 --workers 3 --blocks-per-worker 2000 \
    --policy kv,random,power-of-two --router-temperature 0.4 --sim-jitter 0.2 --event-delay 5ms
  replay "$1" rag --generate rag:requests=120,zipf=1.2 --rate 3 --arrival gamma:cv=2.5 --workers 4 --blocks-per-worker 600 \
    --block-size 32,64 --policy kv,least-loaded --routers 2 --sim-timing mocker-0.2 --sim-load-factor 1.5 --slo-ttft 2s
}

here="$(go env GOARCH)"
under=""
runs "$here"
status=0
for arch in "${archs[@]}"; do
  [ "$arch" != "$here" ] || continue
  cpu="$arch"
  [ "$arch" != arm64 ] || cpu=aarch64
  [ "$arch" != amd64 ] || cpu=x86_64
  under="${QEMU:+$QEMU/}qemu-$cpu-static"
  runs "$arch"
  diff -rq "$tmp/$here" "$tmp/$arch" && echo "$arch: the same bytes as on $here" || status=1
done
exit $status
