package node

import (
	"bytes"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// tokenText returns the bytes which each token adds to decoded text, which the engine needs to constrain its
// answers to a schema: none for special tokens, which decoded text omits. It returns nil if they depend on
// the preceding token, as with WordPiece. A space at the beginning of a text is the only exception, and JSON
// does not start with one.
func tokenText(t prep.Tokenizer) func(dst []byte, id kv.Token) ([]byte, bool) {
	text := func(dst []byte, id kv.Token) ([]byte, bool) {
		if t.IsSpecial(id) {
			return dst, false
		}
		return t.AppendBytes(dst, id)
	}
	decoder := t.NewDecoder(prep.DecodeOptions{})
	var alone, after []byte
	for id := range kv.Token(t.VocabSize()) {
		var ok bool
		if after, ok = text(after[:0], id); !ok || !utf8.Valid(after) || bytes.HasPrefix(after, []byte(" ")) {
			continue
		}
		if alone = decoder.Flush(decoder.Push(alone[:0], id)); !bytes.Equal(alone, after) {
			return nil
		}
	}
	return text
}
