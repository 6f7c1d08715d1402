package node

import (
	"bytes"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// tokenText returns what the engine must know of the tokens' texts to hold its
// answers to a schema: the bytes that each adds to the decoded text, none for
// special tokens, which decoded text leaves out. It returns nil if that depends on
// what is before a token, as with WordPiece. What only depends on it is the space
// at the beginning of a text, and JSON begins with none.
func tokenText(t prep.Tokenizer) func(dst []byte, id kv.Token) ([]byte, bool) {
	text := func(dst []byte, id kv.Token) ([]byte, bool) {
		if t.Special(id) {
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
