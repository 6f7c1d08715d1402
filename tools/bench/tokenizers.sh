#!/bin/sh
# Measure internal/edge/prep/token beside the reference implementation, on one
# thread, in one run, with the vocabularies of Llama 3, GPT-4o, Qwen 2.5 and
# DeepSeek-V3: a megabyte of English and one of Go, both in
# pieces of 4096 characters. Run
# tools/fixtures/check_real.sh first, with the same DIR: it fetches them.
#
#   tools/bench/tokenizers.sh [DIR]
set -eu
cd "$(dirname "$0")/../.."
dir=${1:-/tmp/checkreal}
export TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1
src=$(go env GOROOT)/src
sources() { find "$src/net" "$src/go" "$src/crypto" "$src/encoding" -type f -name '*.go' | LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat; }
sources >"$dir/go.txt"
# English: the comments of the same sources.
sed -n 's|^// \(.*\)|\1|p' "$dir/go.txt" | head -c 1000000 >"$dir/english.txt"
head -c 1000000 "$dir/go.txt" >"$dir/code.txt"
go build -o "$dir/tokbench" ./tools/bench/tokenizers
for name in llama3 gpt4o qwen2_5 deepseek_v3; do
	model=$dir/npm/node_modules/@lenml/tokenizer-$name/models/tokenizer.json
	for kind in english code; do
		echo "$name $kind"
		"$dir/venv/bin/python" tools/bench/reference.py "$model" "$dir/$kind.txt" | "$dir/tokbench" "$model" "$dir/$kind.txt"
	done
done
