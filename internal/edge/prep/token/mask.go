package token

import (
	"unicode"
	"unicode/utf8"

	"penstock/core/kv"
)

// MaskedIDs returns, ascending, the ids which a model with random weights must not draw, so that its output
// is clean text: special tokens, the end-of-text token, tokens which are not valid UTF-8 on their own or
// contain a control character other than tab and line feed, and unused ids below VocabSize.
func (t *Tokenizer) MaskedIDs() []kv.Token {
	var masked []kv.Token
	for id := range kv.Token(t.VocabSize()) {
		isEOS := t.hasEOS && id == t.eos
		if isEOS || t.IsSpecial(id) || !t.isKnown(id) || !printableText(t.entryBytes(id)) {
			masked = append(masked, id)
		}
	}
	return masked
}

func printableText(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return false
		}
	}
	return utf8.ValidString(s)
}
