#!/usr/bin/env bash
# Starts vLLM a few times with a model that sees, and one Penstock in front, which
# sends requests that show a picture to the one that has it in its cache. Stops all
# of them on Ctrl-C, or when Penstock ends; a vLLM may die.
#
#   examples/multimodal/launch.sh                 # two vLLMs, each on a GPU of its own
#   examples/multimodal/launch.sh --single-gpu    # both on GPU 0, to try it
#   SIMULATE=1 examples/multimodal/launch.sh      # no GPU: servers that speak as vLLM does
#
# README.md beside it lists the variables. Flags behind -- go to penstock up.
set -euo pipefail
set -m # processes get groups of their own: Ctrl-C is this script's to pass on, once

SIMULATE="${SIMULATE:-}"
MODEL="${MODEL:-Qwen/Qwen3-VL-2B-Instruct}"
NUM_WORKERS="${NUM_WORKERS:-2}"
BLOCK_SIZE="${BLOCK_SIZE:-16}"
GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION:-0.20}"
SINGLE_GPU="${SINGLE_GPU:-false}"
KV_EVENTS_PORT_BASE="${KV_EVENTS_PORT_BASE:-5557}"
KV_REPLAY_PORT_BASE="${KV_REPLAY_PORT_BASE:-$((KV_EVENTS_PORT_BASE + 1000))}"
VLLM_PORT_BASE="${VLLM_PORT_BASE:-8001}"
HTTP_ADDR="${HTTP_ADDR:-127.0.0.1:8000}"
PENSTOCK="${PENSTOCK:-penstock}"

usage() {
  echo "usage: launch.sh [--single-gpu] [-- FLAG...]; the flags go to penstock up, README.md has the variables" >&2
  exit "$1"
}
while [ $# -gt 0 ]; do
  case "$1" in
    --single-gpu) SINGLE_GPU=true ;;
    -h | --help) usage 0 ;;
    --) shift; break ;;
    *) usage 2 ;;
  esac
  shift
done

# --frontend-decoding is no flag of vLLM's: Penstock decodes.
vllm_extra=() penstock_extra=("$@")
for word in ${VLLM_EXTRA_ARGS:-}; do
  if [ "$word" = --frontend-decoding ]; then
    penstock_extra+=("$word")
  else
    vllm_extra+=("$word")
  fi
done

lacking() {
  printf 'launch: there is no %s\n' "$1" >&2
  exit 1
}
command -v "$PENSTOCK" >/dev/null || lacking "$PENSTOCK: go install ./cmd/penstock, or say PENSTOCK=PATH"
[ -n "$SIMULATE" ] || command -v vllm >/dev/null || lacking "vllm: pip install vllm, or try SIMULATE=1"

dir="$(mktemp -d "${TMPDIR:-/tmp}/penstock-multimodal-XXXXXX")"
pids=()
stop() {
  trap - EXIT INT TERM
  # Penstock first, the last one: its requests may finish.
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    kill -TERM "${pids[i]}" 2>/dev/null || true
    wait "${pids[i]}" 2>/dev/null || true
  done
}
trap 'stop; exit 0' INT TERM
trap stop EXIT

fail() {
  printf 'launch: %s; the logs are in %s\n' "$1" "$dir" >&2
  exit 1
}

# serve I starts worker I.
serve() {
  local port=$((VLLM_PORT_BASE + $1 - 1)) events=$((KV_EVENTS_PORT_BASE + $1 - 1)) replay=$((KV_REPLAY_PORT_BASE + $1 - 1))
  if [ -n "$SIMULATE" ]; then
    "$PENSTOCK" sim --dialect vllm --http-addr "127.0.0.1:$port" --served-model-name "$MODEL" \
      --kv-cache-block-size "$BLOCK_SIZE" --kv-events "tcp://127.0.0.1:$events" --kv-replay "tcp://127.0.0.1:$replay" \
      --export-model "$dir/model" --family qwen2-vl "${vllm_extra[@]}" >"$dir/worker-$1.log" 2>&1 &
  else
    local gpu=$(($1 - 1))
    [ "$SINGLE_GPU" = true ] && gpu=0
    CUDA_VISIBLE_DEVICES="$gpu" vllm serve "$MODEL" --host 127.0.0.1 --port "$port" \
      --block-size "$BLOCK_SIZE" --gpu-memory-utilization "$GPU_MEMORY_UTILIZATION" --enable-prompt-tokens-details \
      --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://127.0.0.1:'"$events"'", "replay_endpoint": "tcp://127.0.0.1:'"$replay"'"}' \
      "${vllm_extra[@]}" >"$dir/worker-$1.log" 2>&1 &
  fi
  pids+=("$!")
  engines+=(--engine "vllm=http://127.0.0.1:$port,events=tcp://127.0.0.1:$events,replay=tcp://127.0.0.1:$replay")
}

# healthy I waits until worker I answers.
healthy() {
  until curl -q --noproxy '*' -fs -o /dev/null "http://127.0.0.1:$((VLLM_PORT_BASE + $1 - 1))/health"; do
    kill -0 "${pids[$1 - 1]}" 2>/dev/null || { tail -n 20 "$dir/worker-$1.log" >&2; fail "worker $1 did not start"; }
    sleep 0.2 # nothing tells when it answers
  done
}

engines=()
for ((w = 1; w <= NUM_WORKERS; w++)); do
  serve "$w"
  # Each measures the memory of its GPU at its start: on one GPU, one after another.
  if [ "$SINGLE_GPU" = true ]; then healthy "$w"; fi
done
echo "launch: $NUM_WORKERS workers are starting; their logs are in $dir"
for ((w = 1; w <= NUM_WORKERS; w++)); do healthy "$w"; done

"$PENSTOCK" up "${engines[@]}" --http-addr "$HTTP_ADDR" "${penstock_extra[@]}" &
pids+=("$!")

if [ -n "${CHECK:-}" ]; then # asks twice, and stops
  until curl -q --noproxy '*' -fs -o /dev/null "http://$HTTP_ADDR/health"; do
    kill -0 "${pids[-1]}" 2>/dev/null || fail "penstock did not start"
    sleep 0.2 # nothing tells when it answers
  done
  ask="$(dirname "$0")/ask.sh"
  first="$(URL="http://$HTTP_ADDR" "$ask" "$(dirname "$0")/picture.png")" || fail "no answer: $first"
  second="$(URL="http://$HTTP_ADDR" "$ask" "$(dirname "$0")/picture.png")" || fail "no answer: $second"
  printf '%s\n%s\n' "$first" "$second"
  [ "${first%%:*}" = "${second%%:*}" ] || fail "the same picture went to another worker"
  case "$second" in *" 0 of them cached"*) fail "the same picture was computed again" ;; esac
  stop
  rm -rf "$dir"
  exit 0
fi

wait "${pids[-1]}" || fail "penstock ended"
