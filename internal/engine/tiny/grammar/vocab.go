package grammar

import (
	"slices"
	"unicode/utf8"
)

// Vocab holds the tokens of a model as tries of their bytes. It is immutable and safe for concurrent use.
type Vocab struct {
	size    int
	longest int // bytes of the longest token
	all     trie
	// Most tokens can be in a string unescaped. A string without a pattern need not try these: contents[n]
	// has those with at most n characters, as bits, and others is the trie of the rest.
	contents [maxContentRunes + 1][]uint64
	others   trie
}

// trie holds tokens by their bytes.
type trie struct {
	// nodes are in the order of a walk which visits a node before its children, and children in order of
	// their bytes.
	nodes []trieNode
	// tokens holds the tokens which end at each node, node after node.
	tokens []int32
}

// trieNode is one byte of some tokens.
type trieNode struct {
	byte  byte
	depth uint16 // from 1
	skip  int32  // the next node which is not a descendant
	first int32  // index of the first token which ends here; they end where the next node's start
}

// maxTokenBytes bounds the bytes of a token; longer ones are never allowed. In real vocabularies those are
// runs of white space.
const maxTokenBytes = 1 << 10

// maxContentRunes bounds the characters of the tokens in Vocab.contents.
const maxContentRunes = 64

// NewVocab returns the trie of n tokens, whose bytes text returns. Tokens without bytes are never allowed.
// It keeps nothing which text returned. Tokens which start or end within a character are left out unless
// each continuation byte is a token, so that every started character can be ended.
func NewVocab(n int, text func(id int) []byte) *Vocab {
	v := &Vocab{size: n}
	texts := make([]string, n)
	var order []int32
	for id := range n {
		if b := text(id); len(b) > 0 && len(b) <= maxTokenBytes {
			texts[id] = string(b)
			order = append(order, int32(id))
		}
	}
	if !hasAllContinuations(texts) {
		order = slices.DeleteFunc(order, func(id int32) bool { return !utf8.ValidString(texts[id]) })
	}
	slices.SortFunc(order, func(a, b int32) int {
		if texts[a] != texts[b] {
			if texts[a] < texts[b] {
				return -1
			}
			return 1
		}
		return int(a - b)
	})
	v.all = newTrie(texts, order)
	for i := range v.contents {
		v.contents[i] = make([]uint64, (n+63)/64)
	}
	var others []int32
	for _, id := range order {
		s := texts[id]
		v.longest = max(v.longest, len(s))
		count := utf8.RuneCountInString(s)
		if count > maxContentRunes || !isContent(s) {
			others = append(others, id)
			continue
		}
		v.contents[count][id/64] |= 1 << (id % 64)
	}
	for count := 1; count <= maxContentRunes; count++ {
		for i, word := range v.contents[count-1] {
			v.contents[count][i] |= word
		}
	}
	v.others = newTrie(texts, others)
	return v
}

// isContent reports whether s can be in a JSON string unescaped.
func isContent(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == '"' || s[i] == '\\' {
			return false
		}
	}
	return utf8.ValidString(s)
}

// hasAllContinuations reports whether every continuation byte of UTF-8 is a token.
func hasAllContinuations(texts []string) bool {
	var have [0x40]bool
	for _, s := range texts {
		if len(s) == 1 && s[0]&0xC0 == 0x80 {
			have[s[0]&0x3F] = true
		}
	}
	return !slices.Contains(have[:], false)
}

// newTrie returns the trie of the tokens in order, which must be sorted by text.
func newTrie(texts []string, order []int32) trie {
	var v trie
	var path []int32 // the nodes of the previous text
	before := ""
	for _, id := range order {
		s := texts[id]
		common := 0
		for common < min(len(s), len(before)) && s[common] == before[common] {
			common++
		}
		for _, at := range path[common:] {
			v.nodes[at].skip = int32(len(v.nodes))
		}
		path = path[:common]
		for i := common; i < len(s); i++ {
			path = append(path, int32(len(v.nodes)))
			v.nodes = append(v.nodes, trieNode{byte: s[i], depth: uint16(i + 1), first: int32(len(v.tokens))})
		}
		// The tokens of one node are consecutive, before any node below.
		v.tokens = append(v.tokens, id)
		before = s
	}
	for _, at := range path {
		v.nodes[at].skip = int32(len(v.nodes))
	}
	// A node's tokens end where the next node's start; one more node ends the last.
	v.nodes = append(v.nodes, trieNode{first: int32(len(v.tokens))})
	return v
}
