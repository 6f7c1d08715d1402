package token

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/core/kv"
)

// addedToken is a token which is found in text as it stands, before words are cut.
type addedToken struct {
	id      kv.Token
	content string
	// special: an instruction to the model, not text.
	special bool
	// singleWord: matches only without a word character next to it. lstrip, rstrip: it includes the white
	// space before or after it.
	singleWord, lstrip, rstrip bool
	// normalized: matched after the other added tokens, in normalized text.
	normalized bool
}

// addedSet finds added tokens: the leftmost match, and the longest there. It is a trie over bytes.
type addedSet struct {
	tokens          []addedToken
	nodes           []trieNode
	root            [256]int32 // first step, 0 if none
	commonFirstByte string     // the common first byte; "" if there are several
	wordRunes       *runeSet   // word characters; nil if no token needs them
}

type trieNode struct {
	edges []trieEdge // ascending by byte
	token int32      // index in tokens of the one which ends here, or -1
	// tail is the number of remaining bytes of the only token below this node, leaf, if none ends before it;
	// else 0.
	leaf, tail int32
}

type trieEdge struct {
	b    byte
	node int32
}

func newAddedSet(tokens []addedToken, word *runeSet) *addedSet {
	s := &addedSet{tokens: tokens, nodes: []trieNode{{token: -1}}, wordRunes: word}
	for i, t := range tokens {
		if t.content == "" {
			continue
		}
		at := int32(0)
		for j := range len(t.content) {
			at = s.childNode(at, t.content[j])
		}
		s.nodes[at].token = int32(i)
	}
	s.setTails()
	for _, e := range s.nodes[0].edges {
		s.root[e.b] = e.node
	}
	if first := s.nodes[0].edges; len(first) == 1 {
		s.commonFirstByte = string([]byte{first[0].b})
	}
	return s
}

// childNode returns the child of at by b, creating it if needed.
func (s *addedSet) childNode(at int32, b byte) int32 {
	i, found := searchEdge(s.nodes[at].edges, b)
	if found {
		return s.nodes[at].edges[i].node
	}
	node := int32(len(s.nodes))
	s.nodes = append(s.nodes, trieNode{token: -1})
	s.nodes[at].edges = slices.Insert(s.nodes[at].edges, i, trieEdge{b, node})
	return node
}

// setTails sets the tails. Children come after their parents.
func (s *addedSet) setTails() {
	for i := len(s.nodes) - 1; i >= 0; i-- {
		n := &s.nodes[i]
		if len(n.edges) != 1 {
			continue
		}
		switch next := &s.nodes[n.edges[0].node]; {
		case next.token >= 0 && len(next.edges) == 0:
			n.leaf, n.tail = next.token, 1
		case next.token < 0 && next.tail > 0:
			n.leaf, n.tail = next.leaf, next.tail+1
		}
	}
}

func searchEdge(edges []trieEdge, b byte) (int, bool) {
	return slices.BinarySearchFunc(edges, b, func(e trieEdge, b byte) int { return int(e.b) - int(b) })
}

// findFirst returns the first match at or after from, and its position; nil if there is none.
func (s *addedSet) findFirst(text string, from int) (match *addedToken, start, end int) {
	if len(s.nodes) == 1 { // no tokens
		return nil, 0, 0
	}
	for i := from; i < len(text); i++ {
		if s.commonFirstByte != "" { // nearly all vocabularies only have <…>
			next := strings.Index(text[i:], s.commonFirstByte)
			if next < 0 {
				break
			}
			i += next
		}
		at := s.root[text[i]]
		if at == 0 {
			continue
		}
		if t, stop := s.matchLongest(text, i+1, at); t >= 0 {
			return &s.tokens[t], i, stop
		}
	}
	return nil, 0, 0
}

// matchLongest follows text from position i and node at, and returns the token of the deepest node with one,
// and its end; -1 if none.
func (s *addedSet) matchLongest(text string, i int, at int32) (token int32, end int) {
	token = -1
	for {
		n := &s.nodes[at]
		if n.token >= 0 {
			token, end = n.token, i
		}
		if n.tail > 0 {
			whole := s.tokens[n.leaf].content
			if rest := whole[len(whole)-int(n.tail):]; strings.HasPrefix(text[i:], rest) {
				return n.leaf, i + len(rest)
			}
			return token, end
		}
		if i == len(text) {
			return token, end
		}
		e, found := searchEdge(n.edges, text[i])
		if !found {
			return token, end
		}
		at = n.edges[e].node
		i++
	}
}

// textPiece is a part of a text: an added token, or plain text if token is nil.
type textPiece struct {
	token *addedToken
	text  string
}

// segmentRun is a part of a text, up to end, in which special tokens are recognised or are plain text. Added
// tokens neither cross from one run to the next nor look at its text.
type segmentRun struct {
	end     int
	special bool
}

// splitPieces calls yield with the pieces of text in order; none is empty plain text. The runs cover text. It
// stops if yield returns false.
func (s *addedSet) splitPieces(text string, runs []segmentRun, yield func(textPiece) bool) {
	done := 0 // text before it was yielded
	s.eachMatch(text, runs, func(t *addedToken, start, end int) (next int, more bool) {
		if t.lstrip {
			start = len(strings.TrimRightFunc(text[:start], unicode.IsSpace))
		}
		if t.rstrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if done < start && !yield(textPiece{text: text[done:start]}) || !yield(textPiece{token: t}) {
			done = len(text)
			return end, false
		}
		done = end
		return end, true
	})
	if done < len(text) {
		yield(textPiece{text: text[done:]})
	}
}

// eachMatch calls yield with the added tokens in text and their positions before stripping, in order. It
// continues at the position which yield returns, or stops.
func (s *addedSet) eachMatch(text string, runs []segmentRun, yield func(t *addedToken, start, end int) (next int, more bool)) {
	from, begin := 0, 0
	for _, r := range runs {
		for from < r.end {
			t, start, end := s.findFirst(text[:r.end], from)
			if t == nil {
				from = r.end
				break
			}
			from = end
			if t.special && !r.special || t.singleWord && s.touchesWord(text[begin:r.end], start-begin, end-begin) {
				continue
			}
			var more bool
			if from, more = yield(t, start, end); !more {
				return
			}
		}
		begin = r.end
	}
}

func (s *addedSet) touchesWord(text string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return start > 0 && s.wordRunes.contains(before) || end < len(text) && s.wordRunes.contains(after)
}
