#!/usr/bin/env bash
# Runs Penstock in front of real engines on this machine's CPU, with random weights
# made here: two of vLLM with KV events, two more that see pictures and one that encodes
# them for another, SGLang in two releases (two engines, two ranks, pages of single
# tokens, pictures), then two of llama.cpp. What Penstock
# predicts of their caches must be what they report, and a stream whose engine is
# killed must come out whole.
#
#   run.sh [--quick] [--logs DIR] [--engines "vllm pictures sglang sglang-0.5.17 llamacpp"] [PENSTOCK_BINARY]
#
# Without a binary it builds one. --quick runs what is there or can be had within
# three minutes: vLLM, which comes as wheels, and llama.cpp if an earlier run has
# compiled it, which takes about eight minutes of one core. Engine "legs", which are vLLM that hand prompts over,
# runs only if it is named: it starts four engines. --quick leaves out SGLang, of which
# one start takes 35 s of CPU: a release takes about five minutes of two cores.
# --logs keeps the logs of all processes, of engines too.
# What cannot be installed is left out, and said so loudly.
#
# Engines are kept in $REAL_ENGINES, by default in the user's cache directory
# (vLLM about 2.5 GB, a release of SGLang as much). Nothing else is left behind, and no model is downloaded.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"

engines="vllm pictures sglang sglang-0.5.17 llamacpp" patience=1800 limit=5400 quick="" logs=()
while [ $# -gt 0 ]; do
  case "$1" in
  --quick) quick=1 patience=180 limit=900 ;;
  --engines) engines="$2"; shift ;;
  --logs) mkdir -p "$2"; logs=(--logs "$(cd "$2" && pwd)"); shift ;;
  -*) sed -n '2,22s/^# \{0,1\}//p' "$0"; exit 2 ;;
  *) break ;;
  esac
  shift
done

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
root="${REAL_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock-engines}"
bin="${1:-}"
if [ -z "$bin" ]; then
  bin="$work/penstock"
  (cd "$here/../../.." && go build -o "$bin" ./cmd/penstock)
fi

summary="" run=()
skip() {
  printf '\n--- %s\nSKIPPED: %s\n' "$1" "$2"
  summary+="$(printf '%-8s %-10s %s' SKIPPED "$1" "$2")"$'\n'
}
for engine in $engines; do
  began="$SECONDS" code=0
  if [ -n "$quick" ] && [ "$engine" = llamacpp ] && ! ls "$root"/llamacpp-*/installed >/dev/null 2>&1; then
    skip "$engine" "--quick does not compile it; run without --quick once"
    continue
  fi
  if [ -n "$quick" ] && [ "${engine%%-*}" = sglang ]; then
    skip "$engine" "--quick does not start it: one start takes 35 s of CPU; run without --quick"
    continue
  fi
  version=()
  [ "${engine#*-}" = "$engine" ] || version=("${engine#*-}")
  timeout --kill-after=10 "$patience" "$here/install.sh" "$root" "${engine%%-*}" ${version[@]+"${version[@]}"} >"$work/$engine.out" 2>"$work/$engine.log" || code=$?
  case "$code" in
  0)
    run+=("$engine=$(tail -1 "$work/$engine.out")")
    echo "$engine: installed in $((SECONDS - began)) s"
    ;;
  77) skip "$engine" "$(tail -1 "$work/$engine.out"); $(tail -1 "$work/$engine.log")" ;;
  124 | 137) skip "$engine" "not installed within $patience s" ;;
  *)
    tail -20 "$work/$engine.log"
    echo "install.sh $engine failed with $code"
    exit 1
    ;;
  esac
done

code=0
if [ "${#run[@]}" != 0 ]; then
  python3 "$here/make_model.py" "$work/model"
  PYTHONDONTWRITEBYTECODE=1 timeout --kill-after=60 "$limit" python3 "$here/check.py" ${logs[@]+"${logs[@]}"} "$bin" "$work/model" "${run[@]}" || code=$?
fi
for engine in ${run[@]+"${run[@]%%=*}"}; do
  summary+="$(printf '%-8s %s' "$([ "$code" = 0 ] && echo passed || echo FAILED)" "$engine")"$'\n'
done
printf '\n=== real engines\n%s' "$summary"
exit "$code"
