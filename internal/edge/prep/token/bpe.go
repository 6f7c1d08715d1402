package token

import "penstock/core/kv"

// bpe is byte-pair encoding which starts from bytes. Words are kept in a bounded cache. It is safe for
// concurrent use.
type bpe struct {
	merger
	byteTokens [256]kv.Token // the token of each byte
	lexicon    *lexicon
	// wholeWords is looked up before merging: the vocabulary by bytes. nil unless the model ignores merges
	// for known words.
	wholeWords map[string]kv.Token
	cache      *wordCache
}

// appendWord appends the ids of the word text[:n]. The text after it only makes the lookup faster.
func (m *bpe) appendWord(dst []kv.Token, text string, n int) []kv.Token {
	if n == 1 {
		return append(dst, m.byteTokens[text[0]])
	}
	if n > maxCachedWord {
		return m.appendUncached(dst, text[:n])
	}
	// Words of the vocabulary are cached too: it is large, and a lookup in it waits for memory several times.
	dst, ok := m.cache.appendCached(dst, text, n)
	if ok {
		return dst
	}
	start := len(dst)
	dst = m.appendUncached(dst, text[:n])
	m.cache.addWord(text[:n], dst[start:])
	return dst
}

func (m *bpe) appendUncached(dst []kv.Token, word string) []kv.Token {
	if id, ok := m.wholeWords[word]; ok {
		return append(dst, id)
	}
	if len(word) > longWord {
		return m.lexicon.appendWord(dst, word)
	}
	start := len(dst)
	dst = m.appendBytes(dst, word)
	return dst[:start+len(m.mergeSymbols(dst[start:]))]
}

// appendBytes appends the token of each byte.
func (m *bpe) appendBytes(dst []kv.Token, word string) []kv.Token {
	for i := range len(word) {
		dst = append(dst, m.byteTokens[word[i]])
	}
	return dst
}
