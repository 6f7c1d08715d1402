#!/usr/bin/env bash
# Compares the ways to decide where prompts are computed: prefill-heavy, decode-heavy and mixed work, and work which
# changes between the first two every 10 s. Of eight workers two or four are prefill workers; beside them are eight
# which do both. For each way it prints the time to the first token, between tokens and of whole answers, and the share
# of requests within targets. Last it prints how much worse cost is than the best of the others. It needs jq.
#
#   tools/bench/disagg.sh [REQUESTS]            replay, 2000 requests: time is virtual, and the figures do not depend on
#                                               the machine; two quiet cores take a few minutes
#   tools/bench/disagg.sh -bench [REQUESTS]     bench, 300 requests, against "penstock up --engine sim": engines, rates
#                                               and targets are slower by the factor of $SPEED (0.25), so that one quiet
#                                               machine keeps up; $SPLITS (2 4) are the numbers of prefill workers,
#                                               $WORKS (all) the names of the work. About 40 s for each row.
#   tools/bench/disagg.sh -stages [REQUESTS]    the milliseconds between the end of a prefill and the first token of its
#                                               decode worker, by stage: the means of 20 prompts of $TOKENS (8000), one
#                                               at a time, of the built-in model. Once its blocks go through the memory
#                                               of one process, once through shared memory between two. Two quiet cores
#                                               take a few minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=""
stages=""
case "${1:-}" in
-bench) bench=yes && shift ;;
-stages) stages=yes && shift ;;
esac
requests="${1:-$([ -n "$bench" ] && echo 300 || echo 2000)}"
speed="$([ -n "$bench" ] && echo "${SPEED:-0.25}" || echo 1)"
tmp="$(mktemp -d)"
server=""
stop_server() {
  # shellcheck disable=SC2086 # it may be several
  [ -z "$server" ] || { kill $server && wait $server || true; } 2>/dev/null
  server=""
}
trap 'stop_server; rm -rf "$tmp"' EXIT
go build -o "$tmp/penstock" ./cmd/penstock

# start NAME FLAG... starts a process with an HTTP address of its own, and waits until it says it: then it is in $url.
start() {
  local name="$1" pid
  shift
  "$tmp/penstock" "$@" --http-addr 127.0.0.1:0 --json >"$tmp/$name.json" 2>"$tmp/$name.log" &
  pid=$!
  server="$server $pid"
  until url="$(jq -re 'select(.url) | .url' "$tmp/$name.json" 2>/dev/null | head -n 1)" && [ -n "$url" ]; do
    kill -0 "$pid" 2>/dev/null || { cat "$tmp/$name.log" >&2; exit 1; }
    sleep 0.1 # between two looks at what the process has printed
  done
}

# print_stages FRONTEND DECODER sends prompts to a frontend, and prints the stages by the metrics of a decode worker.
print_stages() {
  "$tmp/penstock" bench --url "$1" --generate "random:input=${TOKENS:-8000},output=2" --concurrency 1 --requests "${requests:-20}" --json \
    >"$tmp/result" 2>"$tmp/bench.log" || { cat "$tmp/bench.log" >&2; exit 1; }
  curl -sf "$2/metrics" | awk '
    /^penstock_prefill_stage_seconds_(sum|count)/ { match($1, /stage="[a-z_]+"/); stage = substr($1, RSTART + 7, RLENGTH - 8) }
    /^penstock_prefill_stage_seconds_sum/ { sum[stage] += $2 }
    /^penstock_prefill_stage_seconds_count/ { count[stage] += $2 }
    /^penstock_prefill_bytes_total.*received/ { bytes += $2 }
    /^penstock_xfer_transfers_total.*"ok".*side="owner"/ && $2 > 0 {
      match($1, /transport="[a-z]+"/); by = by (by ? "," : "") substr($1, RSTART + 11, RLENGTH - 12)
    }
    END {
      n = split("send transfer import first_token", stages, " ")
      if (!count["transfer"]) { print "no prompt was computed elsewhere" >"/dev/stderr"; exit 1 }
      for (i = 1; i <= n; i++) { ms = count[stages[i]] ? 1000 * sum[stages[i]] / count[stages[i]] : 0; all += ms; row = row sprintf("%.2f\t", ms) }
      printf "%s\t%d\t%.1f\t%s%.2f\n", by, count["transfer"], bytes / count["transfer"] / 1048576, row, all
    }' >>"$tmp/stages"
}

if [ -n "$stages" ]; then
  requests="${1:-20}"
  printf 'TRANSPORT\tPROMPTS\tMiB\tSEND ms\tTRANSFER ms\tIMPORT ms\tFIRST TOKEN ms\tALL ms\n' >"$tmp/stages"
  slow=(--disagg-policy always --prefill-wait 5m) # a busy machine computes a prompt for longer than a minute
  start up up --workers 1 --prefill-workers 1 "${slow[@]}"
  print_stages "$url" "$url"
  stop_server
  mkdir "$tmp/fleet"
  fleet=(--discovery file --discovery-dir "$tmp/fleet" --event-plane zmq --event-addr 127.0.0.1:0 --rpc-addr 127.0.0.1:0)
  start prefill worker --role prefill --prefill-wait 5m "${fleet[@]}"
  start decode worker --role decode "${slow[@]}" "${fleet[@]}"
  decoder="$url"
  start frontend frontend "${fleet[@]}"
  print_stages "$url" "$decoder"
  column -t -s "$(printf '\t')" "$tmp/stages"
  exit
fi

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

# slower VALUE prints a rate, and longer VALUE a target in ms, at this speed.
slower() { awk "BEGIN { print $1 * $speed }"; }
longer() { awk "BEGIN { print $1 / $speed \"ms\" }"; }

# Each work has its name, its requests and its targets.
works=(
  "prefill-heavy --generate random:input=6000,output=60,vary=0.5 --rate $(slower 30) --slo-ttft $(longer 1000) --slo-itl $(longer 50)"
  "decode-heavy --generate random:input=400,output=500,vary=0.5 --rate $(slower 40) --slo-ttft $(longer 500) --slo-itl $(longer 40)"
  "mixed --generate random:input=2500,output=250,vary=1 --rate $(slower 48) --slo-ttft $(longer 1000) --slo-itl $(longer 50)"
  "changing --trace $tmp/changing.jsonl --slo-ttft $(longer 1000) --slo-itl $(longer 50)"
)

# run_replay WORKERS PREFILL FLAG... prints the result of a work whose flags are in $what.
run_replay() {
  local workers="$1" prefill="$2"
  shift 2
  # shellcheck disable=SC2086 # it is several words
  "$tmp/penstock" replay $what --requests "$requests" --policy time --json \
    --workers "$workers" --prefill-workers "$prefill" "$@" 2>/dev/null
}

# run_bench does the same with real time and real processes' planes: a server for each policy.
run_bench() {
  local workers="$1" prefill="$2" port=18000 flags=() speedup=() policy
  shift 2
  [ "$prefill" = 0 ] || flags=(--prefill-workers "$prefill" "$@")
  case "$what" in *--trace*) speedup=(--speedup "$speed") ;; esac
  policy="${2:-}"
  [ "${1:-}" = --max-local-prefill-length ] && policy=threshold
  "$tmp/penstock" up --http-addr "127.0.0.1:$port" --engine sim --sim-speedup "$speed" --workers "$workers" \
    "${flags[@]}" >"$tmp/server.log" 2>&1 &
  server=$!
  # shellcheck disable=SC2086 # it is several words
  "$tmp/penstock" bench --url "http://127.0.0.1:$port" $what "${speedup[@]}" --requests "$requests" --warmup 20 --json \
    2>"$tmp/bench.log" >"$tmp/result" || { cat "$tmp/server.log" "$tmp/bench.log" >&2; exit 1; }
  curl -sf "http://127.0.0.1:$port/metrics" >"$tmp/metrics" || true
  stop_server
  jq -c --arg policy "$policy" --arg length "${2:-}" \
    --argjson remote "$(awk '/^penstock_prefill_remote_total/ { n += $2 } END { print n + 0 }' "$tmp/metrics")" '
    .rows[] |= (if $policy == "" then . else .disagg = {policy: $policy, prefill_remote: $remote} end |
      if $policy == "threshold" then .disagg.max_local_prefill_length = ($length | tonumber) else . end)' "$tmp/result"
}

: >"$tmp/rows"
for work in "${works[@]}"; do
  read -r name what <<<"$work"
  case " ${WORKS:-$name} " in *" $name "*) ;; *) continue ;; esac
  # run WORKERS PREFILL FLAG... adds the rows of a result.
  run() {
    "run_$([ -n "$bench" ] && echo bench || echo replay)" "$@" |
      jq -c --arg work "$name" --arg split "$2+$1" '.rows[] + {work: $work, split: $split}' >>"$tmp/rows"
    [ -z "$bench" ] || echo "$name $2+$1 ${*:3}: $(wc -l <"$tmp/rows") rows" >&2
  }
  run 8 0
  for prefill in ${SPLITS:-2 4}; do
    for policy in ${POLICIES:-never always cost}; do run "$((8 - prefill))" "$prefill" --disagg-policy "$policy"; done
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
