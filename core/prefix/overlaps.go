package prefix

import (
	"iter"
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// Run is the set of workers which hold exactly Depth leading blocks.
type Run struct {
	Depth   int
	Workers Set
}

// Set is a set of workers.
type Set struct {
	view  *lookupView
	first int
	words []uint64
}

// Len returns the number of workers in s.
func (s Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// All yields the workers of s, in no particular order.
func (s Set) All() iter.Seq[kv.Worker] {
	return func(yield func(kv.Worker) bool) {
		for i, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if !yield(s.view.names[(s.first+i)<<6|bits.TrailingZeros64(w)]) {
					return
				}
			}
		}
	}
}

// DepthRuns returns, deepest first, which workers hold how many blocks of the prompt when tiers up to t
// count. Workers which hold nothing are in no run. The result is valid until the next call.
func (m *Match) DepthRuns(t kv.Tier) []Run {
	m.runs = m.runs[:0]
	if m.tiers == 0 {
		return m.runs
	}
	runs := m.walks[min(int(t), m.tiers-1)].runs
	for _, r := range slices.Backward(runs) {
		m.runs = append(m.runs, Run{r.depth, Set{m.view, r.lo, m.words[r.at : r.at+r.n]}})
	}
	return m.runs
}

// overlapColumns are what AppendOverlaps gathers, indexed by the rank of workers, so that the answer is
// ordered without sorting. All values are 0 between calls.
type overlapColumns struct {
	present              []uint64 // ranks of the workers in the answer
	depth                [kv.Tiers][]int32
	attachable, labelled []int32
}

// AppendOverlaps appends to dst, ordered by worker, the overlap of each worker which holds or can attach at
// least the first block. It takes a few steps for each of them, and for each 64 known workers.
func (m *Match) AppendOverlaps(dst []kv.Overlap) []kv.Overlap {
	if m.tiers == 0 {
		return dst
	}
	v, c := m.view, &m.columns
	growZeroed(&c.present, len(v.visible))
	for i := range m.walks[:m.tiers] {
		growZeroed(&c.depth[i], len(v.order))
		for _, r := range m.walks[i].runs {
			m.addToColumn(c.depth[i], r, r.depth)
		}
	}
	for _, r := range m.walks[m.tiers-1].runs {
		for n := range m.numbersOf(r) {
			rank := v.rank[n]
			c.present[rank>>6] |= 1 << (rank & 63)
		}
	}
	if len(m.counts) > 0 {
		growZeroed(&c.attachable, len(v.order))
		growZeroed(&c.labelled, len(v.order))
		for _, t := range m.counts {
			m.addToColumn(c.attachable, t.set, t.attachable)
			m.addToColumn(c.labelled, t.set, t.labelled)
		}
	}
	for i, w := range c.present {
		for ; w != 0; w &= w - 1 {
			dst = append(dst, m.takeOverlap(i<<6|bits.TrailingZeros64(w)))
		}
	}
	clear(c.present)
	return dst
}

// takeOverlap returns the overlap of the worker at a rank, and resets its values to 0.
func (m *Match) takeOverlap(rank int) kv.Overlap {
	c := &m.columns
	o := kv.Overlap{Worker: m.view.names[m.view.order[rank]]}
	faster := 0
	for i := range m.tiers {
		depth := int(c.depth[i][rank])
		o.Blocks[i] = depth - faster
		faster, c.depth[i][rank] = depth, 0
	}
	if len(m.counts) > 0 {
		o.Attachable, c.attachable[rank] = int(c.attachable[rank]), 0
		o.Labelled, c.labelled[rank] = int(c.labelled[rank]), 0
	}
	return o
}

// addToColumn adds n to a column for each worker of r.
func (m *Match) addToColumn(column []int32, r workerRun, n int) {
	for number := range m.numbersOf(r) {
		column[m.view.rank[number]] += int32(n)
	}
}

// numbersOf yields the numbers in the set of a run.
func (m *Match) numbersOf(r workerRun) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range m.words[r.at : r.at+r.n] {
			for ; w != 0; w &= w - 1 {
				if !yield((r.lo+i)<<6 | bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// growZeroed extends s with zeros to at least n elements.
func growZeroed[E any](s *[]E, n int) {
	if n > len(*s) {
		*s = append(*s, make([]E, n-len(*s))...)
	}
}
