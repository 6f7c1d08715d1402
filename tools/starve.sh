#!/usr/bin/env bash
# Runs tests beside busy processes, with the race detector, to find tests that take a slow
# machine for a fault.
#
#   tools/starve.sh                              the four tests that failed so 20 times, and
#                                                their packages twice, beside 30 busy processes;
#                                                the three packages' tests run at the same time
#   tools/starve.sh -times 20 PKG -run REGEXP    tests of a package
#   tools/starve.sh -all                         every package of the repository once, beside 8
#
#   -busy N    busy processes (30; 8 with -all)
#   -p N       with -all: packages whose tests run at the same time (as many as there are processors)
#   -times N   how often the tests run (20; a package without -run twice)
#   -within T  bounds the whole in seconds (21600); what runs then is stopped, and has failed
#   -hard      3 busy processes of niceness 10 and the tests of niceness 19: the tests get a few
#              percent of a processor, and other users of the machine lose little
#
# Test binaries are built before the busy processes start. The tests of a package end at the first
# failure, and the exit code is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

busy="" times="" within=21600 hard="" all="" run="" pkg="" packages=""
while [ $# -gt 0 ]; do
  case "$1" in
    -busy) busy="$2"; shift ;;
    -p) packages="$2"; shift ;;
    -times) times="$2"; shift ;;
    -within) within="$2"; shift ;;
    -run) run="$2"; shift ;;
    -hard) hard=yes ;;
    -all) all=yes ;;
    -*) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2 ;;
    *) pkg="$1" ;;
  esac
  shift
done

work="$(mktemp -d)"
loops=()
nice=()
stop() {
  [ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 1' INT TERM
end=$(( $(date +%s) + within ))

# start_busy COUNT starts busy processes; each ends by itself when the time is up.
start_busy() {
  local count="$1" level=()
  if [ -n "$hard" ]; then
    count=3 level=(nice -n 10) nice=(nice -n 19)
  fi
  for _ in $(seq "$count"); do
    "${level[@]}" timeout "$within" bash -c 'while :; do :; done' &
    loops+=($!)
  done
  echo "beside $count busy processes"
}

# build PKG writes its test binary.
build() { CGO_ENABLED=1 go test -race -c -o "$work/$(basename "$1").test" "$1"; }

# tests PKG TIMES [REGEXP] runs them.
tests() {
  local pkg="$1" times="$2" regexp="${3:-}" began left log
  log="$work/$(basename "$pkg").log"
  for n in $(seq "$times"); do
    began=$(date +%s)
    left=$(( end - began ))
    [ "$left" -gt 0 ] || { echo "the $within s are up"; exit 1; }
    if ! (cd "$pkg" && "${nice[@]}" timeout "$left" "$work/$(basename "$pkg").test" -test.timeout 60m ${regexp:+-test.run "$regexp"}) >"$log" 2>&1; then
      cat "$log"
      [ "$(date +%s)" -lt "$end" ] || { echo "the $within s are up"; exit 1; }
      echo "FAIL $pkg $regexp: run $n of $times"
      exit 1
    fi
    echo "ok $pkg $regexp: run $n of $times, $(( $(date +%s) - began )) s"
  done
}

if [ -n "$all" ]; then
  # The packages are compiled before: vet's share of the time is none of the tests'.
  CGO_ENABLED=1 go test -race -run '^$' ./... >/dev/null
  start_busy "${busy:-8}"
  # The longest packages come first, so that they do not run alone at the end.
  CGO_ENABLED=1 "${nice[@]}" timeout "$within" go test -race ${packages:+-p "$packages"} -timeout 60m \
    ./test/e2e ./test/dialects ./cmd/penstock ./...
  exit
fi
if [ -n "$pkg" ]; then
  build "./${pkg#./}"
  start_busy "${busy:-30}"
  tests "./${pkg#./}" "${times:-$([ -n "$run" ] && echo 20 || echo 2)}" "$run"
  exit
fi
for plane in bus natsd rpc; do build "./internal/plane/$plane"; done
start_busy "${busy:-30}"

# both PKG REGEXP runs tests of a package 20 times, then the package twice.
both() {
  tests "$1" "${times:-20}" "$2"
  tests "$1" 2
}
both ./internal/plane/bus '^TestNATSOverTCP$/^durable$/^replay$|^TestNATSArchiveEmbedded$/^sizes$' &
running=($!)
both ./internal/plane/natsd '^TestMend$' &
running+=($!)
both ./internal/plane/rpc '^TestTCPTenThousandStreamsOnOneConnection$' &
running+=($!)
failed=0
for pid in "${running[@]}"; do wait "$pid" || failed=1; done
exit "$failed"
