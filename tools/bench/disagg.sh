#!/usr/bin/env bash
# Compares the ways to decide where prompts are computed, in replay: prefill-heavy, decode-heavy and mixed work on
# eight workers, of which two or four are prefill workers, beside eight which do both. For each way it prints the time
# to the first token, between tokens and of whole answers, and the share of requests within targets. Last it prints how
# much worse cost is than the best of the others. Time is virtual: the figures do not depend on the machine. Two quiet
# cores take a few minutes. It needs jq.
#
#   tools/bench/disagg.sh [REQUESTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
requests="${1:-2000}"
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock

# Each work has its kind, its requests a second, and its targets.
works=(
  "prefill-heavy random:input=6000,output=60,vary=0.5 24 --slo-ttft 1s --slo-itl 50ms"
  "decode-heavy random:input=400,output=500,vary=0.5 30 --slo-ttft 500ms --slo-itl 40ms"
  "mixed random:input=2500,output=250,vary=1 24 --slo-ttft 1s --slo-itl 50ms"
)
: >"$tmp/rows"
for work in "${works[@]}"; do
  read -r name kind rate targets <<<"$work"
  run() {
    local workers="$1" prefill="$2"
    shift 2
    # shellcheck disable=SC2086 # targets are several words
    "$tmp/penstock" replay --generate "$kind" --requests "$requests" --rate "$rate" --policy time $targets --json \
      --workers "$workers" --prefill-workers "$prefill" "$@" 2>/dev/null |
      jq -c --arg work "$name" --arg split "$prefill+$workers" '.rows[] + {work: $work, split: $split}' >>"$tmp/rows"
  }
  run 8 0
  for prefill in 2 4; do
    run "$((8 - prefill))" "$prefill" --disagg-policy never,always,cost
    for length in 500 1000 4000; do
      run "$((8 - prefill))" "$prefill" --max-local-prefill-length "$length"
    done
  done
done

jq -rs '
  def ms: . * 10 | round / 10;
  def way: if .disagg == null then "aggregated"
    elif .disagg.policy == "threshold" then "threshold \(.disagg.max_local_prefill_length)" else .disagg.policy end;
  (["WORK", "PREFILL+DECODE", "POLICY", "TTFT", "TTFT p99", "ITL", "ITL p99", "E2E", "GOODPUT %", "REMOTE"] | @tsv),
  (.[] | [.work, .split, way, (.ttft_ms.mean, .ttft_ms.p99, .itl_ms.mean, .itl_ms.p99, .e2e_ms.mean | ms),
    (.goodput.share * 100 | ms), (.disagg.prefill_remote // "-")] | @tsv)
' "$tmp/rows" | column -t -s "$(printf '\t')"
echo
jq -rs '
  map(select(.disagg)) | group_by(.work + .split)[] |
  (map(select(.disagg.policy == "cost"))[0]) as $cost | map(select(.disagg.policy != "cost")) as $others |
  ($cost.e2e_ms.mean / ($others | map(.e2e_ms.mean) | min) * 1000 | round / 1000) as $e2e |
  ($cost.goodput.share / ([($others | map(.goodput.share) | max), 1e-9] | max) * 1000 | round / 1000) as $goodput |
  "\(.[0].work) \(.[0].split): E2E of cost is \($e2e) of the best, goodput \($goodput)"
' "$tmp/rows"
