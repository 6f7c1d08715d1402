#!/usr/bin/env bash
# Compares the ways to decide where prompts are computed, in replay: prefill-heavy, decode-heavy and mixed work, and
# work which changes between the first two every 10 s. Of eight workers two or four are prefill workers; beside them are
# eight which do both. For each way it prints the time to the first token, between tokens and of whole answers, and the
# share of requests within targets. Last it prints how much worse cost is than the best of the others. Time is virtual:
# the figures do not depend on the machine. Two quiet cores take a few minutes. It needs jq.
#
#   tools/bench/disagg.sh [REQUESTS]
set -euo pipefail
cd "$(dirname "$0")/../.."
requests="${1:-2000}"
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock

# The work which changes: a trace whose lengths vary by half, with blocks of 512 tokens which no two prompts share.
awk -v n="$requests" 'BEGIN {
  for (seed = 1; i < n; i++) {
    heavy = int(at / 10000) % 2 == 0
    seed = (seed * 16807) % 2147483647
    vary = 0.5 + seed / 2147483647
    input = int((heavy ? 6000 : 400) * vary); output = int((heavy ? 60 : 500) * vary)
    ids = ""
    for (k = 0; k < input / 512; k++) ids = ids (k ? "," : "") ++id
    printf "{\"timestamp\":%d,\"input_length\":%d,\"output_length\":%d,\"hash_ids\":[%s]}\n", at, input, output, ids
    at += 1000 / (heavy ? 30 : 40)
  }
}' >"$tmp/changing.jsonl"

# Each work has its name, its requests and its targets.
works=(
  "prefill-heavy --generate random:input=6000,output=60,vary=0.5 --rate 30 --slo-ttft 1s --slo-itl 50ms"
  "decode-heavy --generate random:input=400,output=500,vary=0.5 --rate 40 --slo-ttft 500ms --slo-itl 40ms"
  "mixed --generate random:input=2500,output=250,vary=1 --rate 48 --slo-ttft 1s --slo-itl 50ms"
  "changing --trace $tmp/changing.jsonl --slo-ttft 1s --slo-itl 50ms"
)
: >"$tmp/rows"
for work in "${works[@]}"; do
  read -r name what <<<"$work"
  run() {
    local workers="$1" prefill="$2"
    shift 2
    # shellcheck disable=SC2086 # it is several words
    "$tmp/penstock" replay $what --requests "$requests" --policy time --json \
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
