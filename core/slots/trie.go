package slots

import "penstock/core/kv"

// chainTrie counts the requests which use each block of a worker, by runs: consecutive blocks of chains with
// the same users. A chain which leaves another one in the middle of a run, or ends there, splits the run. So
// a prompt which shares nothing is one run, which takes one step to add and one to remove.
//
// Runs are found by their parent and their first block. Chains from other routers may contain any blocks:
// equal blocks after different parents are different blocks.
type trie struct {
	stretches []stretch // at indexes which do not change
	vacant    []int32
	after     map[edge]int32
}

// runKey identifies a run.
type edge struct {
	before int32 // noIndex for the first run of a chain
	head   kv.SeqHash
}

type stretch struct {
	seqs   []kv.SeqHash // at least one; the run owns the memory
	head   kv.SeqHash   // the first
	before int32
	// users counts the requests whose chains contain the run. userXor is the exclusive or of their indexes:
	// with one user, its index.
	n   int32
	who int32
}

// enterRun returns the run of chain after parent, split so that it ends where the chain ends or leaves it:
// its index and its number of blocks. The run is new, without users, if no chain continued in this way.
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

// splitRun makes the first n blocks of a run a run of its own, and returns its index. The remaining blocks
// keep the old index, because requests end there.
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

// removeRun removes a run which no request uses; so no run which follows it is used either.
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

// matchChain returns how many leading blocks of a chain are used, how many of them by only one request, and
// the index of that request. These are the last ones, and all of the same request, because a request which
// uses a block uses all blocks before it.
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

// commonLength returns the number of equal leading blocks of p and q, whose first blocks are equal. Equal
// blocks have equal predecessors, so a binary search finds the end.
func alike(p, q []kv.SeqHash) int {
	low, high := 1, min(len(p), len(q))
	if p[high-1] == q[high-1] { // the usual case
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
