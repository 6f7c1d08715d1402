package token

import _ "embed"

// The built-in vocabulary, made by tools/mkvocab. It is frozen: the weights of the built-in model belong to
// its ids.
var (
	//go:embed builtin/tokenizer.json
	builtinTokenizer string
	//go:embed builtin/tokenizer_config.json
	builtinConfig string
)

// Builtin returns the tokenizer of the built-in model: byte-level byte-pair encoding with Llama 3's
// pre-tokenizer, learnt from Penstock's own documents, and <|end|> as the end of text.
func Builtin() (*Tokenizer, error) {
	return Parse(BuiltinFiles())
}

// BuiltinFiles returns copies of the files of [Builtin], for digests or for writing out.
func BuiltinFiles() (tokenizer, config []byte) {
	return []byte(builtinTokenizer), []byte(builtinConfig)
}
