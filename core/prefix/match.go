package prefix

import (
	"slices"

	"penstock/core/kv"
)

// runner is a worker that holds every block so far.
type runner struct {
	number uint32
	tier   uint8 // the slowest tier needed so far
	out    int   // its place in the answer
}

// Match appends to dst, ordered by worker, the overlap of each worker that holds
// at least the first block of chain: the SeqHashes of a prompt's full blocks in
// order. It allocates only if dst must grow.
func (x *Index) Match(dst []kv.Overlap, chain []kv.SeqHash) []kv.Overlap {
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
