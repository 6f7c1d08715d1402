package prefix

import (
	"iter"
	"maps"
	"slices"

	"penstock/core/kv"
)

// runner is a worker that holds every block so far.
type runner struct {
	number uint32
	tier   uint8 // the slowest tier needed so far
	out    int   // its place in the answer
}

// Match is the answer of [Index.Match], and the memory of it: one that is used again
// allocates nothing. Runs and Sets in it are valid until it is used again.
type Match struct {
	overlaps []kv.Overlap
	runs     []Run
}

// Run is the set of workers that hold exactly Depth leading blocks.
type Run struct {
	Depth   int
	Workers Set
}

// Set is a set of workers.
type Set struct{ workers []kv.Worker }

// Len returns the number of workers in s.
func (s Set) Len() int { return len(s.workers) }

// All yields the workers of s, in no particular order.
func (s Set) All() iter.Seq[kv.Worker] { return slices.Values(s.workers) }

// Runs returns, deepest first, who holds how much of the prompt when tiers up to t count.
// Workers that hold nothing are in no run.
func (m *Match) Runs(t kv.Tier) []Run {
	m.runs = m.runs[:0]
	byDepth := map[int][]kv.Worker{}
	for _, o := range m.overlaps {
		depth := 0
		for i := range t + 1 {
			depth += o.Blocks[i]
		}
		if depth > 0 {
			byDepth[depth] = append(byDepth[depth], o.Worker)
		}
	}
	for _, depth := range slices.SortedFunc(maps.Keys(byDepth), func(a, b int) int { return b - a }) {
		m.runs = append(m.runs, Run{depth, Set{byDepth[depth]}})
	}
	return m.runs
}

// AppendOverlaps appends to dst, ordered by worker, the overlap of each worker that holds
// or can attach at least the first block.
func (m *Match) AppendOverlaps(dst []kv.Overlap) []kv.Overlap { return append(dst, m.overlaps...) }

// Match finds who holds how much of a prompt, of which chain has the SeqHashes of the full
// blocks in order, into m. moe, if not nil, has labels counted.
func (x *Index) Match(m *Match, chain []kv.SeqHash, moe *kv.MoEQuery) {
	m.overlaps = x.match(m.overlaps[:0], chain)
}

// Hide keeps w out of all answers until Show: what it holds is in doubt, but goes on being
// kept, and Apply goes on.
func (x *Index) Hide(w kv.Worker) {}

// Show ends Hide.
func (x *Index) Show(w kv.Worker) {}

// Place says that the blocks that end in seqs are in a pool. A block that nobody holds
// has no known place among prefixes and is left out; Place returns how many were not.
func (x *Index) Place(p kv.PoolID, seqs []kv.SeqHash) int { return 0 }

// Displace says that the blocks that end in seqs are no longer in a pool.
func (x *Index) Displace(p kv.PoolID, seqs []kv.SeqHash) {}

// SetAccess says which workers can attach a pool.
func (x *Index) SetAccess(p kv.PoolID, workers []kv.Worker) {}

// DropPool forgets a pool and all that was in it.
func (x *Index) DropPool(p kv.PoolID) {}

// match appends to dst, ordered by worker, the overlap of each worker that holds
// at least the first block of chain: the SeqHashes of a prompt's full blocks in
// order. It allocates only if dst must grow.
func (x *Index) match(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap {
	if len(chain) == 0 {
		return dst
	}
	base := len(dst)
	active := x.active[:0]
	for _, h := range x.blocks[chain[0]] {
		o := kv.Overlap{Worker: x.workers[h.number()].id}
		o.Blocks[h.fastest()] = 1
		active = append(active, runner{number: h.number(), tier: h.fastest(), out: len(dst)})
		dst = append(dst, o)
	}
	x.active = active
	for _, seq := range chain[1:] {
		if len(active) == 0 {
			break
		}
		active = advance(dst, active, x.blocks[seq])
	}
	slices.SortFunc(dst[base:], func(a, b kv.Overlap) int { return a.Worker.Compare(b.Worker) })
	return dst
}

// advance counts one more block for each active worker among holders and returns
// those workers. Both are ascending, so one pass over each is enough.
func advance(dst []kv.Overlap, active []runner, holders []holder) []runner {
	still, j := active[:0], 0
	for _, r := range active {
		for j < len(holders) && holders[j].number() < r.number {
			j++
		}
		if j == len(holders) {
			break
		}
		if holders[j].number() != r.number {
			continue
		}
		r.tier = max(r.tier, holders[j].fastest())
		dst[r.out].Blocks[r.tier]++
		still = append(still, r)
	}
	return still
}
