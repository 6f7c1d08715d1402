#!/usr/bin/env bash
# Starts TensorRT-LLM a few times with a model that sees, a router that looks at the
# pictures of requests, and a frontend in front. Stops all of them on Ctrl-C, or when the
# frontend ends; a TensorRT-LLM may die.
#
#   examples/trtllm/multimodal.sh               # two servers, each on a GPU of its own
#   SIMULATE=1 examples/trtllm/multimodal.sh    # no GPU: servers that speak as TensorRT-LLM does
#
# README.md beside it lists the variables. Flags behind -- go to penstock router.
set -euo pipefail
set -m # processes get groups of their own: Ctrl-C is this script's to pass on, once

SIMULATE="${SIMULATE:-}"
MODEL="${MODEL:-Qwen/Qwen3-VL-2B-Instruct}"
MODEL_PATH="${MODEL_PATH:-}"
NUM_WORKERS="${NUM_WORKERS:-2}"
BLOCK_SIZE="${BLOCK_SIZE:-32}"
GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION:-0.40}"
KV_EVENTS_PORT_BASE="${KV_EVENTS_PORT_BASE:-5557}"
KV_REPLAY_PORT_BASE="${KV_REPLAY_PORT_BASE:-$((KV_EVENTS_PORT_BASE + 1000))}"
TRTLLM_PORT_BASE="${TRTLLM_PORT_BASE:-8001}"
NATS_ADDR="${NATS_ADDR:-127.0.0.1:4222}"
HTTP_ADDR="${HTTP_ADDR:-127.0.0.1:8000}"
PENSTOCK="${PENSTOCK:-penstock}"

case "${1:-}" in
  "") ;;
  --) shift ;;
  *) echo "usage: multimodal.sh [-- FLAG...]; the flags go to penstock router, README.md has the variables" >&2; exit 2 ;;
esac

lacking() {
  printf 'multimodal: there is no %s\n' "$1" >&2
  exit 1
}
command -v "$PENSTOCK" >/dev/null || lacking "$PENSTOCK: go install ./cmd/penstock, or say PENSTOCK=PATH"
[ -n "$SIMULATE" ] || command -v trtllm-serve >/dev/null || lacking "trtllm-serve: pip install tensorrt-llm, or try SIMULATE=1"

dir="$(mktemp -d "${TMPDIR:-/tmp}/penstock-trtllm-XXXXXX")"
pids=()
stop() {
  trap - EXIT INT TERM
  # The last one first, so that running requests may finish; the frontend, which has NATS, at the end.
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    kill -TERM "${pids[i]}" 2>/dev/null || true
    wait "${pids[i]}" 2>/dev/null || true
  done
}
trap 'stop; exit 0' INT TERM
trap stop EXIT

fail() {
  printf 'multimodal: %s; the logs are in %s\n' "$1" "$dir" >&2
  exit 1
}

# start NAME COMMAND... starts a process that logs to NAME.log.
start() {
  local name="$1"
  shift
  "$@" >"$dir/$name.log" 2>&1 &
  pids+=("$!")
}

# answers NAME URL waits until a process that was just started answers.
answers() {
  until curl -q --noproxy '*' -fs -o /dev/null "$2"; do
    kill -0 "$3" 2>/dev/null || { tail -n 20 "$dir/$1.log" >&2; fail "$1 did not start"; }
    sleep 0.2 # nothing tells when it answers
  done
}

model=()
[ -z "$SIMULATE" ] || MODEL_PATH="$dir/model"
[ -z "$MODEL_PATH" ] || model=(--model-path "$MODEL_PATH")

for ((w = 1; w <= NUM_WORKERS; w++)); do
  port=$((TRTLLM_PORT_BASE + w - 1)) events=$((KV_EVENTS_PORT_BASE + w - 1)) replay=$((KV_REPLAY_PORT_BASE + w - 1))
  if [ -n "$SIMULATE" ]; then
    start "trtllm-$w" "$PENSTOCK" sim --dialect trtllm --http-addr "127.0.0.1:$port" --served-model-name "$MODEL" \
      --kv-cache-block-size "$BLOCK_SIZE" --kv-events "tcp://127.0.0.1:$events" --kv-replay "tcp://127.0.0.1:$replay" \
      --export-model "$dir/model" --family qwen2-vl
  else
    cat >"$dir/options-$w.yaml" <<YAML
kv_cache_config:
  enable_block_reuse: true
  tokens_per_block: $BLOCK_SIZE
  free_gpu_memory_fraction: $GPU_MEMORY_UTILIZATION
  kv_events_config:
    {enable_kv_cache_events: true, publisher: zmq, endpoint: "tcp://127.0.0.1:$events", replay_endpoint: "tcp://127.0.0.1:$replay"}
YAML
    start "trtllm-$w" env CUDA_VISIBLE_DEVICES=$((w - 1)) trtllm-serve "$MODEL" --host 127.0.0.1 --port "$port" \
      --extra_llm_api_options "$dir/options-$w.yaml"
  fi
done
echo "multimodal: $NUM_WORKERS workers are starting; their logs are in $dir"
for ((w = 1; w <= NUM_WORKERS; w++)); do answers "trtllm-$w" "http://127.0.0.1:$((TRTLLM_PORT_BASE + w - 1))/health" "${pids[w - 1]}"; done

# The frontend has the NATS server that the others use: it is the first of the list, which stops last.
start frontend "$PENSTOCK" frontend --nats-listen "$NATS_ADDR" --component router --router-mode round-robin --http-addr "$HTTP_ADDR"
frontend="${pids[-1]}"
unset 'pids[-1]'
pids=("$frontend" "${pids[@]}")
answers frontend "http://$HTTP_ADDR/live" "$frontend"
for ((w = 1; w <= NUM_WORKERS; w++)); do
  start "worker-$w" "$PENSTOCK" worker --nats "nats://$NATS_ADDR" "${model[@]}" --engine \
    "trtllm=http://127.0.0.1:$((TRTLLM_PORT_BASE + w - 1)),events=tcp://127.0.0.1:$((KV_EVENTS_PORT_BASE + w - 1)),replay=tcp://127.0.0.1:$((KV_REPLAY_PORT_BASE + w - 1)),media=image,media-keys=uuid"
done
start router "$PENSTOCK" router --nats "nats://$NATS_ADDR" --multimodal "${model[@]}" "$@"

if [ -n "${CHECK:-}" ]; then # asks twice, and stops
  answers frontend "http://$HTTP_ADDR/health" "$frontend"
  ask="$(dirname "$0")/../multimodal/ask.sh" picture="$(dirname "$0")/../multimodal/picture.png"
  first="$(URL="http://$HTTP_ADDR" "$ask" "$picture")" || fail "no answer: $first"
  second="$(URL="http://$HTTP_ADDR" "$ask" "$picture")" || fail "no answer: $second"
  printf '%s\n%s\n' "$first" "$second"
  case "$second" in *" 0 of them cached"*) fail "the same picture was computed again" ;; esac
  stop
  rm -rf "$dir"
  exit 0
fi

wait "$frontend" || fail "the frontend ended"
