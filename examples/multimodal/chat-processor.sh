#!/usr/bin/env bash
# launch.sh with vLLM's own processor: the engines make the prompts and process the
# pictures, so any model that vLLM sees with is routed by its pictures too. A picture is
# processed once, by the engine that makes the prompt.
#
#   examples/multimodal/chat-processor.sh [--single-gpu] [-- FLAG...]
#
# README.md beside it lists the variables.
set -euo pipefail

export GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION:-0.40}"
# vLLM has its token endpoints only with this flag; servers that speak as vLLM does have them anyway.
[ -n "${SIMULATE:-}" ] || export VLLM_EXTRA_ARGS="--enable-scale-out ${VLLM_EXTRA_ARGS:-}"

launch=() penstock=(--dyn-chat-processor vllm)
[ "${DYNAMO_DISABLE_NIXL_MM:-}" != 1 ] || penstock+=(--mm-transfer off)
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then shift; break; fi
  launch+=("$1")
  shift
done
exec "$(dirname "$0")/launch.sh" "${launch[@]}" -- "${penstock[@]}" "$@"
