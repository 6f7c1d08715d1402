#!/usr/bin/env bash
# Fuzzes.
#
#   tools/fuzz.sh [-quarter] [TIME]         every target of the repository, for that long each (10s);
#                                           -quarter the targets of a quarter of the packages, which the
#                                           commit chooses
#   tools/fuzz.sh -cpu 20m [-keep] PKG...   each package, its targets by turns, until they have used
#                                           so many CPU-minutes; -keep adds some of the inputs that
#                                           were found to reach new code to testdata/corpus.txtar
#
# What a target finds is written to the package's testdata/fuzz, where go test
# runs it from then on. It exits 1 if anything was found.
set -euo pipefail
cd "$(dirname "$0")/.."

# overrun says of a failed run's log that nothing was found: when a run's time is up
# while an input is on its way to the worker, Go's fuzzer can report the end of its
# own time as a failure (golang.org/issue/75804). A finding names the input it wrote.
overrun() {
  grep -q '^    context deadline exceeded$' "$1" && ! grep -q 'Failing input written' "$1"
}

targets() { # of a package's directory
  grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$1"/*_test.go 2>/dev/null | cut -d' ' -f2 || true
}

if [ "${1:-}" != -cpu ]; then
  parts=1 part=0
  if [ "${1:-}" = -quarter ]; then
    shift
    parts=4 part=$(( 16#$(git rev-parse --short=7 HEAD | cut -c 1-7) % 4 ))
    echo "packages of quarter $((part + 1)) of $parts"
  fi
  time="${1:-10s}"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | xargs -n1 dirname | sort -u | awk -v n="$parts" -v k="$part" 'NR % n == k' | while read -r pkg; do
    # One binary for all targets of the package: go test -fuzz would link one for each.
    go test -c -fuzz=. -o "$work/fuzz.test" "$pkg"
    cache="$(go env GOCACHE)/fuzz/$(go list "$pkg")"
    for target in $(targets "$pkg"); do
      echo "$pkg $target"
      (cd "$pkg" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" \
        -test.fuzzcachedir "$cache") </dev/null >"$work/log" 2>&1 || { overrun "$work/log" || { cat "$work/log"; exit 1; }; }
      if overrun "$work/log"; then echo "nothing found when the fuzzer's own time was up"; else tail -n 1 "$work/log"; fi
    done
  done
  exit
fi

budget=$(( ${2%m} * 60 ))
shift 2
keep=""
if [ "${1:-}" = -keep ]; then keep=yes; shift; fi
round=60 # seconds for a target at a time
kept=48  # inputs that -keep leaves in the archive for a target, none above 4 KiB
found=0
for pkg in "$@"; do
  pkg="./${pkg#./}"
  pkg="${pkg%/}"
  work="$(mktemp -d)"
  go test -c -fuzz=. -o "$work/fuzz.test" "$pkg"
  cache="$(go env GOCACHE)/fuzz/$(go list "$pkg")"
  used=0
  while [ "$used" -lt "$budget" ]; do
    for target in $(targets "$pkg"); do
      # The CPU time of the run and of its workers, in seconds.
      TIMEFORMAT='%U %S'
      cpu="$( { time (cd "$pkg" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${round}s" \
        -test.parallel 1 -test.fuzzminimizetime 50x -test.fuzzcachedir "$cache" </dev/null >"$work/log" 2>&1 || echo found >"$work/found"); } 2>&1 | tail -n1)"
      used="$(awk -v a="$used" -v b="$cpu" 'BEGIN { split(b, s, " "); printf "%d", a + s[1] + s[2] + 0.5 }')"
      echo "$pkg $target: $(grep -oE 'execs: [0-9]+' "$work/log" | tail -n1), $used of $budget CPU-seconds"
      if [ -e "$work/found" ] && overrun "$work/log"; then rm "$work/found"; fi
      if [ -e "$work/found" ]; then
        cat "$work/log"
        rm "$work/found"
        found=1
        break 2
      fi
      if [ "$used" -ge "$budget" ]; then break; fi
    done
  done
  if [ -n "$keep" ]; then
    archive="$pkg/testdata/corpus.txtar"
    for target in $(targets "$pkg"); do
      [ -d "$cache/$target" ] || continue
      mkdir -p "$pkg/testdata"
      touch "$archive"
      # The others' inputs stay. The names are hashes: the first of them are a fair sample.
      awk -v head="-- $target/" '/^-- .* --$/ { skip = index($0, head) == 1 } !skip' "$archive" >"$work/corpus"
      find "$cache/$target" -type f -size -8 | sort | awk -v n="$kept" 'NR <= n' | while read -r input; do
        printf -- '-- %s/%s --\n%s\n' "$target" "$(basename "$input")" "$(cat "$input")"
      done >>"$work/corpus"
      cp "$work/corpus" "$archive"
      grep -qs 'fixturetest.AddCorpus(f)' "$pkg"/*_test.go || echo "$target needs fixturetest.AddCorpus(f), which reads $archive"
    done
  fi
  rm -rf "$work"
done
exit "$found"
