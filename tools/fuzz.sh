#!/usr/bin/env bash
# Runs every fuzz target of the repository for the given time each (default 10s):
# tools/fuzz.sh 30s
set -euo pipefail
cd "$(dirname "$0")/.."
time="${1:-10s}"
grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | sort | while read -r file; do
  pkg="./$(dirname "${file#./}")"
  grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | cut -d' ' -f2 | while read -r target; do
    echo "$pkg $target"
    go test "$pkg" -run '^$' -fuzz "^$target\$" -fuzztime "$time" </dev/null
  done
done
