package grammar

import (
	"encoding/binary"

	"penstock/core/fault"
)

// MaskCache computes which tokens of a vocabulary may come next in the states of one grammar, and caches
// the masks of recurring states. It is not safe for concurrent use.
type MaskCache struct {
	vocab      *Vocab
	words      int
	levels     [][]thread // by depth in the trie
	frameMarks []int      // number of frames at each depth
	key        []byte
	cached     map[string][]uint64
	maxCached  int
	uncached   []uint64 // the mask of the last state which was not cached
}

// cacheBytes bounds the cached masks, about 4 MiB.
const cacheBytes = 4 << 20

// maxKeyBytes bounds the keys of cached states.
const maxKeyBytes = 4 << 10

// NewMaskCache returns the masks over v for the states of one grammar.
func NewMaskCache(v *Vocab) *MaskCache {
	words := (v.size + 63) / 64
	return &MaskCache{
		vocab:      v,
		words:      words,
		levels:     make([][]thread, v.longest+1),
		frameMarks: make([]int, v.longest+1),
		cached:     map[string][]uint64{},
		maxCached:  max(16, cacheBytes/(8*words+256)),
		uncached:   make([]uint64, words),
	}
}

// TokenMask returns the tokens whose bytes may come next in s, as one bit per token: token i is bit i%64 of
// word i/64. It leaves s unchanged. The caller must not change the mask, which is valid until the next
// call. The error is a *fault.Error of code Invalid: the schema has too many readings of this text to
// follow them all.
func (m *MaskCache) TokenMask(s *State) ([]uint64, error) {
	if s.isInNumber() { // seldom recurs, and few tokens can follow
		clear(m.uncached)
		return m.uncached, m.walkTrie(s, m.uncached)
	}
	m.key = s.appendStateKey(m.key[:0], uint32(m.vocab.longest))
	if mask, ok := m.cached[string(m.key)]; ok {
		return mask, nil
	}
	if len(m.key) > maxKeyBytes {
		clear(m.uncached)
		return m.uncached, m.walkTrie(s, m.uncached)
	}
	mask := make([]uint64, m.words)
	if err := m.walkTrie(s, mask); err != nil {
		return nil, err
	}
	if len(m.cached) >= m.maxCached {
		clear(m.cached) // rare, and needed masks come back
	}
	m.cached[string(m.key)] = mask
	return mask, nil
}

// isInNumber reports whether some reading is within a number.
func (s *State) isInNumber() bool {
	for i := range s.threads {
		if t := &s.threads[i]; s.g.code[t.pc].op == opNumber && t.c != numberStart {
			return true
		}
	}
	return false
}

// stringRoom reports whether some reading is between two characters of a string without a pattern, and how
// many more characters it may have.
func (s *State) stringRoom() (n uint32, ok bool) {
	for i := range s.threads {
		t := &s.threads[i]
		in := &s.g.code[t.pc]
		if in.op != opText || t.c != modePlain {
			continue
		}
		if x := &s.g.strings[in.x]; x.dfa == nil {
			left := unlimited
			if x.max != unlimited {
				left = x.max - uint32(t.a)
			}
			n, ok = max(n, left), true
		}
	}
	return n, ok
}

// The work limit of one mask: a few readings of every token.
const (
	workPerNode = 16
	minWork     = 250_000
)

// walkTrie sets the bits of the tokens which may come next in s. It follows the trie where the grammar
// does, with one level of threads per byte of the path.
func (m *MaskCache) walkTrie(s *State, mask []uint64) error {
	v := &m.vocab.all
	if n, ok := s.stringRoom(); ok {
		v = &m.vocab.others
		for i, word := range m.vocab.contents[min(n, maxContentRunes)] {
			mask[i] |= word
		}
	}
	m.levels[0] = append(m.levels[0][:0], s.threads...)
	m.frameMarks[0] = len(s.frames)
	defer func() { s.frames = s.frames[:m.frameMarks[0]] }()
	s.work = 0
	for i := 0; i < len(v.nodes)-1; {
		n := &v.nodes[i]
		// The frames made by the levels above are in use; later ones belong to another branch.
		s.frames = s.frames[:m.frameMarks[n.depth-1]]
		level := s.advanceThreads(m.levels[n.depth][:0], m.levels[n.depth-1], n.byte)
		m.levels[n.depth], m.frameMarks[n.depth] = level, len(s.frames)
		if len(level) == 0 {
			i = int(n.skip)
			continue
		}
		if s.work > workPerNode*len(v.nodes)+minWork {
			return fault.New(fault.Invalid, "the JSON schema has too many alternatives that begin alike; simplify its anyOf")
		}
		for _, t := range v.tokens[n.first:v.nodes[i+1].first] {
			mask[t/64] |= 1 << (t % 64)
		}
		i++
	}
	return nil
}

// appendStateKey appends what distinguishes s from other states for texts of up to reach bytes.
func (s *State) appendStateKey(dst []byte, reach uint32) []byte {
	for i := range s.threads {
		t := &s.threads[i]
		dst = binary.AppendUvarint(dst, uint64(t.pc))
		a := t.a
		if in := &s.g.code[t.pc]; in.op == opText && s.g.strings[in.x].dfa == nil {
			a = s.g.strings[in.x].limitKey(uint32(a), reach)
		}
		dst = binary.AppendUvarint(dst, a)
		dst = binary.AppendUvarint(dst, uint64(t.b))
		dst = binary.AppendUvarint(dst, uint64(t.c))
		for f := t.frame; f > 0; f = s.frames[f].parent {
			dst = binary.AppendUvarint(dst, uint64(s.frames[f].ret)+1)
			dst = binary.AppendUvarint(dst, uint64(s.frames[f].count))
		}
		dst = append(dst, 0)
	}
	return dst
}

// limitKey returns a number which is equal for all lengths so far from the limits that reach more
// characters meet neither.
func (x *stringRule) limitKey(n, reach uint32) uint64 {
	missing, left := uint32(0), reach+1
	if n < x.min {
		missing = min(x.min-n, reach+1)
	}
	if x.max != unlimited {
		left = min(x.max-n, reach+1)
	}
	return uint64(missing)<<32 | uint64(left)
}
