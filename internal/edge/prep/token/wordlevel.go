package token

import "penstock/core/kv"

// wordLevel only knows whole words.
type wordLevel struct {
	words map[string]kv.Token
	unk   kv.Token
}

func (t *Tokenizer) newWordLevel(f *fileModel, vocab map[string]kv.Token) (wordModel, error) {
	m := &wordLevel{words: make(map[string]kv.Token, len(vocab))}
	var ok bool
	if m.unk, ok = vocab[f.UnkToken]; !ok {
		return nil, malformed("the unk_token is not in the vocabulary")
	}
	for name, id := range vocab {
		if !t.IsSpecial(id) {
			m.words[name] = id // special tokens are never the result of encoding plain text
		}
	}
	return m, nil
}

func (m *wordLevel) appendWord(dst []kv.Token, word string) []kv.Token {
	if id, ok := m.words[word]; ok {
		return append(dst, id)
	}
	return append(dst, m.unk)
}
