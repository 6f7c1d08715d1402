package token

import (
	"encoding/json"
	"math"
	"math/bits"
	"slices"
	"sync"
	"unicode/utf8"

	"penstock/core/kv"
)

// unigram chooses, of all ways to compose a word from entries, the one with the largest sum of scores.
type unigram struct {
	trie     *byteTrie
	scores   []float64
	unk      kv.Token
	unkScore float64
	window   int          // a power of two above the length in bytes of every entry and character
	bytes    *byteEntries // nil without byte fallback
	pool     sync.Pool    // *unigramScratch
}

// unkPenalty is the cost of an unknown character below the least likely entry.
const unkPenalty = 10

// scoredVocabulary reads a list of entries and scores.
func (m *fileModel) scoredVocabulary() (map[string]kv.Token, []float64, error) {
	var list []scoredEntry
	if len(m.Vocab) == 0 {
		return nil, nil, malformed("the Unigram model has no vocabulary")
	}
	if err := json.Unmarshal(m.Vocab, &list); err != nil {
		return nil, nil, err
	}
	vocab := make(map[string]kv.Token, len(list))
	scores := make([]float64, len(list))
	for i, s := range list {
		if _, ok := vocab[s.name]; ok {
			return nil, nil, unsupported("a Unigram vocabulary with the entry %q twice is not supported", s.name)
		}
		vocab[s.name], scores[i] = kv.Token(i), s.score
	}
	return vocab, scores, nil
}

// scoredEntry is an entry as ["▁the", -3.2].
type scoredEntry struct {
	name  string
	score float64
}

// UnmarshalJSON reads the list of two.
func (s *scoredEntry) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&s.name, &s.score})
}

func (t *Tokenizer) newUnigram(f *fileModel, vocab map[string]kv.Token, scores []float64) (wordModel, error) {
	if f.UnkID == nil {
		return nil, unsupported("a Unigram model without unk_id is not supported")
	}
	if int(*f.UnkID) >= len(scores) {
		return nil, malformed("unk_id %d is not in the vocabulary", *f.UnkID)
	}
	m := &unigram{trie: newByteTrie(), scores: scores, unk: *f.UnkID}
	least := math.Inf(1)
	for _, s := range scores {
		least = min(least, s)
	}
	m.unkScore = least - unkPenalty
	longest := utf8.UTFMax
	for name, id := range vocab {
		if !t.IsSpecial(id) {
			m.trie.addEntry(name, id)
			longest = max(longest, len(name))
		}
	}
	if longest > int(stepLength) {
		return nil, unsupported("a Unigram vocabulary with an entry of %d bytes is not supported; at most %d are", longest, stepLength)
	}
	m.window = 1 << bits.Len(uint(longest))
	if f.ByteFallback {
		m.bytes = t.newByteEntries(vocab)
	}
	return &cachedModel{model: m}, nil
}

// unigramScratch is the working memory for one word: a few bytes per byte of the word.
type unigramScratch struct {
	// scores has the scores of the best paths to the last few positions, in a ring by position.
	scores []float64
	// steps has the last step of the best path to each position.
	steps []unigramStep
}

// unigramStep is the length in bytes of the last entry on the path to a position, 0 if it is not reached, and
// flags.
type unigramStep uint16

const (
	stepUnknown unigramStep = 1 << 15 // it is the unknown token
	stepTaken   unigramStep = 1 << 14 // the best path to the end of the word has an entry which ends here
	stepLength              = stepTaken - 1
)

func (m *unigram) appendWord(dst []kv.Token, word string) []kv.Token {
	s, _ := m.pool.Get().(*unigramScratch)
	if s == nil {
		s = &unigramScratch{scores: make([]float64, m.window)}
	}
	m.findBestPath(s, word)
	dst = m.collectPath(dst, s, word)
	if cap(s.steps) <= keepScratch {
		m.pool.Put(s)
	}
	return dst
}

// findBestPath finds the best path to every position. Among equals the first found wins.
func (m *unigram) findBestPath(s *unigramScratch, word string) {
	s.steps = slices.Grow(s.steps[:0], len(word)+1)[:len(word)+1]
	clear(s.steps)
	s.scores[0] = 0
	for start := 0; start < len(word); {
		_, width := utf8.DecodeRuneInString(word[start:])
		here := s.scores[start&(len(s.scores)-1)]
		single := false // the character here is an entry
		node := uint32(0)
		for end := start; end < len(word); {
			var ok bool
			if node, ok = m.trie.childNode(node, word[end]); !ok {
				break
			}
			end++
			if id, ok := m.trie.nodeToken(node); ok {
				s.offerStep(m.scores[id]+here, start, end, m.stepFlags(id))
				single = single || end-start == width
			}
		}
		if !single {
			s.offerStep(m.unkScore+here, start, start+width, stepUnknown)
		}
		start += width
	}
}

// stepFlags returns the flags of a step by id.
func (m *unigram) stepFlags(id kv.Token) unigramStep {
	if id == m.unk {
		return stepUnknown
	}
	return 0
}

// offerStep sets the step from start to end if no better one is known.
func (s *unigramScratch) offerStep(score float64, start, end int, flags unigramStep) {
	best := &s.scores[end&(len(s.scores)-1)]
	if s.steps[end] == 0 || score > *best {
		*best, s.steps[end] = score, unigramStep(end-start)|flags
	}
}

// collectPath walks back from the end to mark the steps of the best path, and appends their ids. Adjacent
// unknown characters are one, which is then looked up by its text, as in the reference.
func (m *unigram) collectPath(dst []kv.Token, s *unigramScratch, word string) []kv.Token {
	unknown := false
	for end := len(word); end > 0; {
		step := s.steps[end]
		is := step&stepUnknown != 0
		if !is || !unknown {
			s.steps[end] |= stepTaken
		}
		unknown = is
		end -= int(step & stepLength)
	}
	start := 0
	for i, step := range s.steps {
		if step&stepTaken != 0 {
			dst = m.appendEntry(dst, word[start:i])
			start = i
		}
	}
	return dst
}

func (m *unigram) appendEntry(dst []kv.Token, text string) []kv.Token {
	if id, ok := m.trie.lookup(text); ok {
		return append(dst, id)
	}
	if m.bytes != nil {
		var ok bool
		if dst, ok = m.bytes.appendAll(dst, text); ok {
			return dst
		}
	}
	return append(dst, m.unk)
}

// byteTrie maps strings to ids, byte by byte: nodes are numbers, edges are in one table with open addressing,
// at most half full.
type byteTrie struct {
	slots  []trieSlot
	shift  uint8
	tokens []int32 // by node, -1 if no entry ends there
}

type trieSlot struct {
	key  uint64 // the parent node, its byte, and a bit which marks the slot as used
	node uint32
}

const trieTaken = 1 << 63

func newByteTrie() *byteTrie {
	return &byteTrie{slots: make([]trieSlot, 1<<10), shift: 64 - 10, tokens: []int32{-1}}
}

func (t *byteTrie) addEntry(text string, id kv.Token) {
	node := uint32(0)
	for i := range len(text) {
		slot := t.findSlot(node, text[i])
		if slot.key == 0 {
			*slot = trieSlot{trieKey(node, text[i]), uint32(len(t.tokens))}
			t.tokens = append(t.tokens, -1)
		}
		node = slot.node
		if 2*len(t.tokens) > len(t.slots) {
			t.growTable()
		}
	}
	t.tokens[node] = int32(id)
}

func trieKey(node uint32, b byte) uint64 { return trieTaken | uint64(node)<<8 | uint64(b) }

// findSlot returns the slot of the edge, or the free slot where it belongs.
func (t *byteTrie) findSlot(node uint32, b byte) *trieSlot {
	key := trieKey(node, b)
	mask := len(t.slots) - 1
	for i := int(key * golden >> t.shift); ; i = (i + 1) & mask {
		slot := &t.slots[i]
		if slot.key == key || slot.key == 0 {
			return slot
		}
	}
}

func (t *byteTrie) growTable() {
	old := t.slots
	t.slots = make([]trieSlot, 2*len(old))
	t.shift--
	for _, s := range old {
		if s.key != 0 {
			*t.findSlot(uint32(s.key>>8), byte(s.key)) = s
		}
	}
}

// childNode returns the child of node by b.
func (t *byteTrie) childNode(node uint32, b byte) (uint32, bool) {
	slot := t.findSlot(node, b)
	return slot.node, slot.key != 0
}

func (t *byteTrie) nodeToken(node uint32) (kv.Token, bool) {
	id := t.tokens[node]
	return kv.Token(id), id >= 0
}

func (t *byteTrie) lookup(text string) (kv.Token, bool) {
	node, ok := uint32(0), true
	for i := range len(text) {
		if node, ok = t.childNode(node, text[i]); !ok {
			return 0, false
		}
	}
	return t.nodeToken(node)
}
