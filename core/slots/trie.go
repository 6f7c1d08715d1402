package slots

import "penstock/core/kv"

// trie counts the requests that use each block of a worker, by stretches: blocks that follow
// one another in chains and have the same users. A chain that leaves another one in the middle
// of a stretch, or ends there, divides it. So a prompt that shares nothing is one stretch, and it
// costs a step to enter it and one to take it out.
//
// Stretches are found by the one before and their first block: chains of other routers may be
// of any blocks, and blocks of theirs that follow others are others.
type trie struct {
	stretches []stretch // at places that do not change
	vacant    []int32
	after     map[edge]int32
}

// edge leads to a stretch.
type edge struct {
	before int32 // none if it is the first of its chains
	head   kv.SeqHash
}

type stretch struct {
	seqs   []kv.SeqHash // one at least; the memory is its own
	head   kv.SeqHash   // the first
	before int32
	// n counts the requests whose chains have it. who is the exclusive or of their
	// places: when there is one, its place.
	n   int32
	who int32
}

// enter returns the stretches of a chain after one, up to the first that ends where the chain does
// or leaves it: its place, and how many blocks it has. It is new, without users, if no chain went
// on so.
func (b *trie) enter(before int32, chain []kv.SeqHash) (at int32, n int) {
	at, ok := b.after[edge{before, chain[0]}]
	if !ok {
		return b.add(before, chain), len(chain)
	}
	seqs := b.stretches[at].seqs
	for n < len(seqs) && n < len(chain) && seqs[n] == chain[n] {
		n++
	}
	if n < len(seqs) {
		at = b.divide(at, n)
	}
	return at, n
}

func (b *trie) add(before int32, chain []kv.SeqHash) int32 {
	at := b.take()
	s := &b.stretches[at]
	s.seqs, s.head, s.before = append(s.seqs, chain...), chain[0], before
	b.after[edge{before, chain[0]}] = at
	return at
}

// divide makes a stretch of its own of the first n blocks of one, and returns its place. What
// follows them keeps its place: requests end there.
func (b *trie) divide(at int32, n int) int32 {
	first := b.take()
	s, f := &b.stretches[at], &b.stretches[first]
	f.seqs, f.head, f.before, f.n, f.who = append(f.seqs, s.seqs[:n]...), s.head, s.before, s.n, s.who
	s.seqs = s.seqs[:copy(s.seqs, s.seqs[n:])]
	s.head, s.before = s.seqs[0], first
	b.after[edge{f.before, f.head}] = first
	b.after[edge{first, s.head}] = at
	return first
}

// remove takes out a stretch that no request uses, and so none that follows it.
func (b *trie) remove(at int32) {
	s := &b.stretches[at]
	delete(b.after, edge{s.before, s.head})
	seqs := s.seqs[:0]
	if cap(seqs) > keepChain {
		seqs = nil
	}
	*s = stretch{seqs: seqs}
	b.vacant = append(b.vacant, at)
}

func (b *trie) take() int32 {
	if last := len(b.vacant) - 1; last >= 0 {
		at := b.vacant[last]
		b.vacant = b.vacant[:last]
		return at
	}
	b.stretches = append(b.stretches, stretch{})
	return int32(len(b.stretches) - 1)
}

// match returns how many leading blocks of a chain are used, how many of those by one request
// only, and the place of that. They are the last ones, and all of the same request, since whoever
// uses a block uses those before it.
func (b *trie) match(chain []kv.SeqHash) (used, sole int, who int32) {
	who = none
	if len(b.after) == 0 {
		return 0, 0, who
	}
	for before := int32(none); used < len(chain); {
		at, ok := b.after[edge{before, chain[used]}]
		if !ok {
			break
		}
		s := &b.stretches[at]
		n := alike(s.seqs, chain[used:])
		if s.n == 1 {
			sole, who = sole+n, s.who
		}
		if used += n; n < len(s.seqs) {
			break
		}
		before = at
	}
	return used, sole, who
}

// alike returns how many leading blocks are the same, of two that begin alike. Equal blocks have
// equal ones before them, so a binary search finds the end.
func alike(p, q []kv.SeqHash) int {
	low, high := 1, min(len(p), len(q))
	if p[high-1] == q[high-1] { // mostly
		return high
	}
	for low < high {
		mid := int(uint(low+high) >> 1)
		if p[mid] == q[mid] {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}
