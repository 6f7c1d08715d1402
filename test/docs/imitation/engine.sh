#!/usr/bin/env bash
# Takes the start lines of vLLM, SGLang, TensorRT-LLM and llama.cpp, by the name that
# it is called by, and serves as they do with "penstock sim". A flag that the
# documents do not use is refused.
set -euo pipefail

fail() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 2
}

host=127.0.0.1 port='' model='' block=16 events='' replay='' metrics='' extra=()

# member NAME JSON prints a text of a JSON object.
member() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" <<<"$2"; }

# publisher reads the JSON of --kv-events-config.
publisher() {
  [ "$(member publisher "$1")" = zmq ] || fail "the publisher is not zmq"
  events="$(member endpoint "$1")"
  replay="$(member replay_endpoint "$1")"
}

case "$(basename "$0")" in
  vllm)
    dialect=vllm port=8000
    [ "$1" = serve ] || fail "unknown command $1"
    model="$2"
    shift 2
    ;;
  python) # of all that it runs, SGLang
    dialect=sglang port=30000
    if [ "${1:-}" != -m ] || [ "${2:-}" != sglang.launch_server ]; then exec python3 "$@"; fi
    shift 2
    ;;
  trtllm-serve)
    dialect=trtllm port=8000 block=32 model="$1"
    shift
    ;;
  llama-server) dialect=llamacpp port=8080 ;;
esac

while [ $# -gt 0 ]; do
  case "$dialect $1" in
    *" --host") host="$2"; shift ;;
    *" --port") port="$2"; shift ;;
    "vllm --block-size" | "sglang --page-size") block="$2"; shift ;;
    "vllm --gpu-memory-utilization") shift ;;
    "vllm --max-model-len") shift ;;
    "vllm --enable-prompt-tokens-details") ;;
    "vllm --kv-events-config" | "sglang --kv-events-config") publisher "$2"; shift ;;
    "vllm --ec-transfer-config") # its directory is not to be had here
      role="$(member ec_role "$2")"
      extra+=(--ec-role "${role#ec_}" --ec-store "$PWD/encodings")
      shift
      ;;
    "vllm --kv-transfer-config") shift ;; # every imitation has that connector
    "sglang --model-path") model="$2"; shift ;;
    "sglang --enable-metrics" | "llamacpp --metrics") metrics=yes ;;
    "sglang --enable-cache-report") ;;
    "trtllm --extra_llm_api_options") # YAML; kv_events_config is a map in one line
      events="$(sed -n 's/.* endpoint: "\([^"]*\)".*/\1/p' "$2")"
      replay="$(sed -n 's/.*replay_endpoint: "\([^"]*\)".*/\1/p' "$2")"
      shift
      ;;
    "llamacpp -m") model="$2"; shift ;;
    "llamacpp -c") extra+=(--sim-context-length "$2"); shift ;;
    "llamacpp -np") extra+=(--slots "$2"); shift ;;
    *) fail "unknown flag $1" ;;
  esac
  shift
done

if [ "$dialect" = sglang ] || [ "$dialect" = llamacpp ]; then [ -n "$metrics" ] || extra+=(--feature metrics=off); fi
[ -z "$events" ] || extra+=(--kv-events "$events")
[ -z "$replay" ] || extra+=(--kv-replay "$replay")
[ "$dialect" = llamacpp ] || extra+=(--kv-cache-block-size "$block")
exec penstock sim --dialect "$dialect" --http-addr "$host:$port" --served-model-name "$model" \
  --export-model "${IMITATED_MODEL:-$PWD/imitated-model}" ${IMITATED_FAMILY:+--family "$IMITATED_FAMILY"} "${extra[@]}"
