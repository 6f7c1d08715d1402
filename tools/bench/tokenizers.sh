#!/bin/sh
# Measure internal/edge/prep/token beside two libraries in Rust, `tokenizers` and
# `fastokens`, in one run, with the vocabularies of Llama 3, GPT-4o, Qwen 2.5 and
# DeepSeek-V3: a megabyte of English and one of Go, both in pieces of 4096
# characters, on one, two and four threads. It prints nanoseconds for each byte,
# those of each library as multiples of Go's, and the speed-up over one thread. A
# library that cannot read a vocabulary is left out.
# Run tools/fixtures/check_real.sh first, with the same DIR: it fetches the
# vocabularies. Nothing else should run meanwhile; it takes some three minutes at
# BENCH_SECONDS=3 for each figure.
#
#   tools/bench/tokenizers.sh [DIR]
set -eu
cd "$(dirname "$0")/../.."
dir=${1:-/tmp/checkreal}
export BENCH_SECONDS="${BENCH_SECONDS:-3}"
"$dir/venv/bin/pip" install -q tokenizers==0.23.3 fastokens==0.3.5
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
		for library in tokenizers fastokens; do
			for threads in 1 2 4; do
				TOKENIZERS_PARALLELISM=true RAYON_NUM_THREADS=$threads "$dir/venv/bin/python" \
					tools/bench/reference.py $library "$model" "$dir/$kind.txt" 2>/dev/null || true
			done
		done | "$dir/tokbench" -seconds "$BENCH_SECONDS" "$model" "$dir/$kind.txt"
	done
done
