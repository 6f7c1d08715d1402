package prefix

import (
	"iter"
	"math/bits"
	"slices"
)

// numberSet is a set of dense numbers: bit i of word w stands for number 64w+i. It has the words from the
// first to the last nonzero one. The first one is inline: a set of up to 64 neighbours needs no memory of its
// own. Sets are never changed; withNumber and withoutNumber return new ones.
type numberSet struct {
	one  uint64 // word lo; 0 only if the set is empty
	lo   uint32
	rest []uint64 // the words after it; the last is not 0
}

// wordAt returns word i.
func (s *numberSet) wordAt(i int) uint64 {
	i -= int(s.lo)
	if i == 0 {
		return s.one
	}
	if uint(i-1) < uint(len(s.rest)) {
		return s.rest[i-1]
	}
	return 0
}

func (s *numberSet) contains(n uint32) bool { return s.wordAt(int(n>>6))>>(n&63)&1 != 0 }

// endWord returns the index after the last word.
func (s *numberSet) endWord() int { return int(s.lo) + 1 + len(s.rest) }

func (s numberSet) withNumber(n uint32) numberSet {
	w, bit := n>>6, uint64(1)<<(n&63)
	switch {
	case s.one == 0:
		return numberSet{one: bit, lo: w}
	case w == s.lo:
		s.one |= bit
		return s
	case w < s.lo:
		rest := make([]uint64, int(s.lo-w)+len(s.rest))
		rest[s.lo-w-1] = s.one
		copy(rest[s.lo-w:], s.rest)
		return numberSet{one: bit, rest: rest, lo: w}
	}
	rest := make([]uint64, max(len(s.rest), int(w-s.lo)))
	copy(rest, s.rest)
	rest[w-s.lo-1] |= bit
	s.rest = rest
	return s
}

// setOf returns the set of numbers, which must not be empty.
func setOf(numbers []uint32) numberSet {
	lo, hi := slices.Min(numbers)>>6, slices.Max(numbers)>>6
	words := make([]uint64, hi-lo+1)
	for _, n := range numbers {
		words[n>>6-lo] |= 1 << (n & 63)
	}
	return numberSet{one: words[0], rest: cloneCompact(words[1:]), lo: lo}
}

func (s numberSet) withoutNumber(n uint32) numberSet {
	w, bit := n>>6, uint64(1)<<(n&63)
	if !s.contains(n) {
		return s
	}
	if w == s.lo {
		if s.one &^= bit; s.one != 0 {
			return s
		}
		for i, word := range s.rest {
			if word != 0 {
				return numberSet{one: word, rest: cloneCompact(s.rest[i+1:]), lo: s.lo + 1 + uint32(i)}
			}
		}
		return numberSet{}
	}
	at, last := int(w-s.lo-1), len(s.rest)
	if at == last-1 && s.rest[at] == bit {
		for last--; last > 0 && s.rest[last-1] == 0; last-- {
		}
		s.rest = cloneCompact(s.rest[:last])
		return s
	}
	s.rest = cloneCompact(s.rest)
	s.rest[at] &^= bit
	return s
}

// eachNumber yields the numbers in s, ascending.
func (s numberSet) eachNumber() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := int(s.lo); i < s.endWord(); i++ {
			for w := s.wordAt(i); w != 0; w &= w - 1 {
				if !yield(uint32(i<<6 | bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// size returns the number of elements in s.
func (s *numberSet) size() int {
	n := bits.OnesCount64(s.one)
	for _, w := range s.rest {
		n += bits.OnesCount64(w)
	}
	return n
}

// restWithin returns the words of rest which are among n words from lo on, and where among them they begin.
func (s *numberSet) restWithin(lo, n int) (from int, rest []uint64) {
	from, rest = int(s.lo)+1-lo, s.rest
	if from < 0 {
		from, rest = 0, rest[min(-from, len(rest)):]
	}
	if from >= n {
		return 0, nil
	}
	return from, rest[:min(n-from, len(rest))]
}

// equals reports whether both are the same set.
func (s *numberSet) equals(o *numberSet) bool {
	return s.one == o.one && s.lo == o.lo && slices.Equal(s.rest, o.rest)
}

// cloneCompact returns a copy whose capacity is only rounded up by the allocator; nil if s is empty.
func cloneCompact[E any](s []E) []E {
	if len(s) == 0 {
		return nil
	}
	return slices.Clone(s)
}
