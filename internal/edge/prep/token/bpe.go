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

// appendWord appends the ids of the word text[:n]. What follows it in text only
// makes it faster.
func (m *bpe) appendWord(dst []kv.Token, text string, n int) []kv.Token {
	if n == 1 {
		return append(dst, m.single[text[0]])
	}
	if n > cacheable {
		return m.appendUncached(dst, text[:n])
	}
	// Also of words that the vocabulary has: it is large, and to look one up in it takes
	// several waits for memory.
	dst, ok := m.cache.append(dst, text, n)
	if ok {
		return dst
	}
	start := len(dst)
	dst = m.appendUncached(dst, text[:n])
	m.cache.put(text[:n], dst[start:])
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
