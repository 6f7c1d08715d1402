package token

import (
	"sync"

	"penstock/core/kv"
)

// bpe is byte-pair encoding: a word starts as the tokens of its bytes, and the
// neighbours with the lowest rank merge, the leftmost first, until none can.
// Words are remembered in a bounded cache. It is safe for concurrent use.
type bpe struct {
	single [256]kv.Token // the token of each byte
	merges *pairs
	reach  reach
	// whole is asked before merging: the vocabulary by bytes. nil unless the
	// model ignores merges for words that it knows.
	whole map[string]kv.Token
	cache *cache
	pool  sync.Pool // *mergeScratch
}

// shortWord is the length in bytes up to which searching the whole word for
// every merge beats keeping a heap.
const shortWord = 32

func (m *bpe) appendWord(dst []kv.Token, word string) []kv.Token {
	if len(word) == 1 {
		return append(dst, m.single[word[0]])
	}
	if id, ok := m.whole[word]; ok {
		return append(dst, id)
	}
	if len(word) > cacheable {
		return m.mergeLong(dst, word)
	}
	hash := hashWord(word)
	if ids, ok := m.cache.get(hash, word); ok {
		return append(dst, ids...)
	}
	start := len(dst)
	if len(word) <= shortWord {
		dst = m.mergeShort(dst, word)
	} else {
		dst = m.mergeLong(dst, word)
	}
	m.cache.put(hash, word, dst[start:])
	return dst
}

// mergeShort works on a small array: quadratic in at most shortWord.
func (m *bpe) mergeShort(dst []kv.Token, word string) []kv.Token {
	var ids [shortWord]kv.Token
	var next [shortWord]merge // what ids[i] and ids[i+1] become
	n := len(word)
	for i := range n {
		ids[i] = m.single[word[i]]
	}
	for i := range n - 1 {
		next[i] = m.lookup(ids[i], ids[i+1])
	}
	for n > 1 {
		best := 0
		for i := 1; i < n-1; i++ {
			if next[i].rank < next[best].rank {
				best = i
			}
		}
		if next[best].rank == noMerge {
			break
		}
		ids[best] = next[best].id
		copy(ids[best+1:n-1], ids[best+2:n])
		copy(next[best:n-2], next[best+1:n-1])
		n--
		if best > 0 {
			next[best-1] = m.lookup(ids[best-1], ids[best])
		}
		if best < n-1 {
			next[best] = m.lookup(ids[best], ids[best+1])
		}
	}
	return append(dst, ids[:n]...)
}

// noMerge is the rank of two tokens that do not merge.
const noMerge = ^uint32(0)

func (m *bpe) lookup(left, right kv.Token) merge {
	if found, ok := m.merges.get(left, right); ok {
		return found
	}
	return merge{rank: noMerge}
}
