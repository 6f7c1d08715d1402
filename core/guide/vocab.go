package guide

import (
	"slices"
	"unicode/utf8"
)

// Vocab is the tokens of a model as tries of their bytes. It does not change and
// is safe for concurrent use.
type Vocab struct {
	size    int
	longest int // bytes of a token
	all     trie
	// Most tokens can stand in a string as they are. In a string without a pattern
	// these need not be tried: contents has those of at most so many characters, as
	// bits, and others is the trie of the rest.
	contents [maxContent + 1][]uint64
	others   trie
}

// trie is tokens by their bytes.
type trie struct {
	// nodes are in the order of a walk that visits a node before its children, and
	// these by their bytes.
	nodes []node
	// tokens are those that end at each node, one node after the other.
	tokens []int32
}

// node is one byte of some tokens.
type node struct {
	byte  byte
	depth uint16 // from 1
	skip  int32  // the next node that is not below this one
	first int32  // of the tokens that end here; they end where the next node's begin
}

// maxToken bounds the bytes of a token; longer ones are never allowed. Longer
// ones of real vocabularies are runs of white space.
const maxToken = 1 << 10

// maxContent bounds the characters of the tokens that count as contents.
const maxContent = 64

// NewVocab returns the trie of n tokens, of which text returns the bytes; those
// for which it returns none are never allowed. It keeps nothing that text
// returned. Tokens that begin or end within a character are left out unless each
// byte that can continue one is a token, so that no character is begun that
// cannot be ended.
func NewVocab(n int, text func(id int) []byte) *Vocab {
	v := &Vocab{size: n}
	texts := make([]string, n)
	var order []int32
	for id := range n {
		if b := text(id); len(b) > 0 && len(b) <= maxToken {
			texts[id] = string(b)
			order = append(order, int32(id))
		}
	}
	if !continues(texts) {
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
		if count > maxContent || !isContent(s) {
			others = append(others, id)
			continue
		}
		v.contents[count][id/64] |= 1 << (id % 64)
	}
	for count := 1; count <= maxContent; count++ {
		for i, word := range v.contents[count-1] {
			v.contents[count][i] |= word
		}
	}
	v.others = newTrie(texts, others)
	return v
}

// isContent reports whether s can stand in a JSON string as it is.
func isContent(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == '"' || s[i] == '\\' {
			return false
		}
	}
	return utf8.ValidString(s)
}

// continues reports whether every continuation byte of UTF-8 is a token.
func continues(texts []string) bool {
	var have [0x40]bool
	for _, s := range texts {
		if len(s) == 1 && s[0]&0xC0 == 0x80 {
			have[s[0]&0x3F] = true
		}
	}
	return !slices.Contains(have[:], false)
}

// newTrie returns the trie of the tokens in order, which is that of their texts
// and of the walk.
func newTrie(texts []string, order []int32) trie {
	var v trie
	var path []int32 // the nodes of the text before
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
			v.nodes = append(v.nodes, node{byte: s[i], depth: uint16(i + 1), first: int32(len(v.tokens))})
		}
		// The tokens of one node come one after the other, before any node below.
		v.tokens = append(v.tokens, id)
		before = s
	}
	for _, at := range path {
		v.nodes[at].skip = int32(len(v.nodes))
	}
	// A node's tokens end where those of the next begin; one more ends the last.
	v.nodes = append(v.nodes, node{first: int32(len(v.tokens))})
	return v
}
