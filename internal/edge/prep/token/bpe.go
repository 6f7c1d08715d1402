package token

import "penstock/core/kv"

// bpe is byte-pair encoding that starts from bytes. Words are remembered in a
// bounded cache. It is safe for concurrent use.
type bpe struct {
	merger
	single  [256]kv.Token // the token of each byte
	lexicon *lexicon
	// whole is asked before merging: the vocabulary by bytes. nil unless the
	// model ignores merges for words that it knows.
	whole map[string]kv.Token
	cache *cache
}

func (m *bpe) appendWord(dst []kv.Token, word string) []kv.Token {
	if len(word) == 1 {
		return append(dst, m.single[word[0]])
	}
	if len(word) > cacheable {
		return m.appendUncached(dst, word)
	}
	// Also of words that the vocabulary has: it is large, and to look one up in it takes
	// several waits for memory.
	hash := hashWord(word)
	if ids, ok := m.cache.get(hash, word); ok {
		return append(dst, ids...)
	}
	start := len(dst)
	dst = m.appendUncached(dst, word)
	m.cache.put(hash, word, dst[start:])
	return dst
}

func (m *bpe) appendUncached(dst []kv.Token, word string) []kv.Token {
	if id, ok := m.whole[word]; ok {
		return append(dst, id)
	}
	if len(word) > longWord {
		return m.lexicon.append(dst, word)
	}
	start := len(dst)
	dst = m.appendBytes(dst, word)
	return dst[:start+len(m.merge(dst[start:]))]
}

// appendBytes appends the token of each byte.
func (m *bpe) appendBytes(dst []kv.Token, word string) []kv.Token {
	for i := range len(word) {
		dst = append(dst, m.single[word[i]])
	}
	return dst
}
