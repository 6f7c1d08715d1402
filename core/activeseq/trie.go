package activeseq

import "penstock/core/kv"

// chainTrie counts the requests which use each block of a worker, by runs: consecutive blocks of chains with
// the same users. A chain which leaves another one in the middle of a run, or ends there, splits the run. So
// a prompt which shares nothing is one run, which takes one step to add and one to remove.
//
// Runs are found by their parent and their first block. Chains from other routers may contain any blocks:
// equal blocks after different parents are different blocks. A decision walks the trie of each worker, so a run
// names its likely child: most steps compare one hash and look nothing up.
type chainTrie struct {
	runs     []blockRun // at indexes which do not change
	vacant   []int32
	roots    map[kv.SeqHash]int32 // first runs of chains, by their first block
	children map[runKey]int32     // all other runs
}

// runKey identifies a run which is not the first of its chains.
type runKey struct {
	parent int32
	first  kv.SeqHash
}

func newChainTrie() chainTrie {
	return chainTrie{roots: map[kv.SeqHash]int32{}, children: map[runKey]int32{}}
}

type blockRun struct {
	seqs   []kv.SeqHash // at least one; the run owns the memory
	first  kv.SeqHash   // the first
	parent int32
	// users counts the requests whose chains contain the run. userXor is the exclusive or of their indexes:
	// with one user, its index.
	users   int32
	userXor int32
	queued  int32 // users whose prompts are not computed yet
	// branches counts the runs whose parent it is. likely is one of them, or noIndex: when it was entered last, no
	// other one which was likely had more users.
	branches int32
	likely   int32
}

// findChild returns the run after parent which starts with a block, or noIndex.
func (b *chainTrie) findChild(parent int32, first kv.SeqHash) int32 {
	if parent == noIndex {
		if at, ok := b.roots[first]; ok {
			return at
		}
		return noIndex
	}
	p := &b.runs[parent]
	if p.branches == 0 {
		return noIndex
	}
	if p.likely != noIndex {
		if b.runs[p.likely].first == first {
			return p.likely
		}
		if p.branches == 1 {
			return noIndex
		}
	}
	if at, ok := b.children[runKey{parent, first}]; ok {
		return at
	}
	return noIndex
}

// linkChild makes a run findable after its parent.
func (b *chainTrie) linkChild(at int32) {
	s := &b.runs[at]
	if s.parent == noIndex {
		b.roots[s.first] = at
		return
	}
	b.children[runKey{s.parent, s.first}] = at
	b.runs[s.parent].branches++
}

// unlinkChild undoes linkChild.
func (b *chainTrie) unlinkChild(at int32) {
	s := &b.runs[at]
	if s.parent == noIndex {
		delete(b.roots, s.first)
		return
	}
	delete(b.children, runKey{s.parent, s.first})
	p := &b.runs[s.parent]
	if p.branches--; p.likely == at {
		p.likely = noIndex
	}
}

// preferChild makes a run the likely child of its parent, if it has as many users as the present one.
func (b *chainTrie) preferChild(at int32) {
	s := &b.runs[at]
	if s.parent == noIndex {
		return
	}
	if p := &b.runs[s.parent]; p.likely == noIndex || b.runs[p.likely].users <= s.users {
		p.likely = at
	}
}

// enterRun returns the run of chain after parent, split so that it ends where the chain ends or leaves it:
// its index and its number of blocks. The run is new, without users, if no chain continued in this way.
func (b *chainTrie) enterRun(before int32, chain []kv.SeqHash) (at int32, n int) {
	at = b.findChild(before, chain[0])
	if at == noIndex {
		at = b.addRun(before, chain)
		b.preferChild(at)
		return at, len(chain)
	}
	seqs := b.runs[at].seqs
	for n < len(seqs) && n < len(chain) && seqs[n] == chain[n] {
		n++
	}
	if n < len(seqs) {
		at = b.splitRun(at, n)
	}
	b.preferChild(at)
	return at, n
}

func (b *chainTrie) addRun(before int32, chain []kv.SeqHash) int32 {
	at := b.takeVacant()
	s := &b.runs[at]
	s.seqs, s.first, s.parent = append(s.seqs, chain...), chain[0], before
	b.linkChild(at)
	return at
}

// splitRun makes the first n blocks of a run a run of its own, and returns its index. The remaining blocks
// keep the old index, because requests end there.
func (b *chainTrie) splitRun(at int32, n int) int32 {
	first := b.takeVacant()
	b.unlinkChild(at)
	s, f := &b.runs[at], &b.runs[first]
	f.seqs, f.first, f.parent = append(f.seqs, s.seqs[:n]...), s.first, s.parent
	f.users, f.userXor, f.queued = s.users, s.userXor, s.queued
	s.seqs = s.seqs[:copy(s.seqs, s.seqs[n:])]
	s.first, s.parent = s.seqs[0], first
	b.linkChild(first)
	b.linkChild(at)
	f.likely = at
	return first
}

// removeRun removes a run which no request uses; so no run which follows it is used either.
func (b *chainTrie) removeRun(at int32) {
	s := &b.runs[at]
	b.unlinkChild(at)
	seqs := s.seqs[:0]
	if cap(seqs) > keepChain {
		seqs = nil
	}
	*s = blockRun{seqs: seqs, likely: noIndex}
	b.vacant = append(b.vacant, at)
}

func (b *chainTrie) takeVacant() int32 {
	if last := len(b.vacant) - 1; last >= 0 {
		at := b.vacant[last]
		b.vacant = b.vacant[:last]
		return at
	}
	b.runs = append(b.runs, blockRun{likely: noIndex})
	return int32(len(b.runs) - 1)
}

// chainMatch says what of a chain requests use: how many of its leading blocks, how many of those requests which are
// not computed yet, and how many only one request, whose index is owner. Those are the last ones, and all of the same
// request, because a request which uses a block uses all blocks before it.
type chainMatch struct {
	used, queued, sole int
	owner              int32 // noIndex if sole is 0
}

// matchChain sets m to the match of a chain.
func (b *chainTrie) matchChain(chain []kv.SeqHash, m *chainMatch) {
	*m = chainMatch{owner: noIndex}
	if len(b.roots) == 0 {
		return
	}
	for before := int32(noIndex); m.used < len(chain); {
		at := b.findChild(before, chain[m.used])
		if at == noIndex {
			break
		}
		s := &b.runs[at]
		n := commonLength(s.seqs, chain[m.used:])
		if s.users == 1 {
			m.sole, m.owner = m.sole+n, s.userXor
		}
		m.used += n
		if s.queued > 0 {
			m.queued = m.used
		}
		if n < len(s.seqs) {
			break
		}
		before = at
	}
}

// finishRuns records that a request, whose chain ends with a run, is computed.
func (b *chainTrie) finishRuns(last int32) {
	for at := last; at != noIndex; at = b.runs[at].parent {
		b.runs[at].queued--
	}
}

// commonLength returns the number of equal leading blocks of p and q, whose first blocks are equal. Equal
// blocks have equal predecessors, so a binary search finds the end.
func commonLength(p, q []kv.SeqHash) int {
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
