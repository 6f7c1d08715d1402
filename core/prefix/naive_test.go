package prefix

import (
	"cmp"
	"slices"

	"penstock/core/kv"
)

// naive is the simplest possible index: for each worker and tier the set of prefixes, and the same for pools.
type naive struct {
	workers map[kv.Worker]*naiveWorker
	pools   map[kv.PoolShare]*naivePool
}

type naiveWorker struct {
	on     map[kv.SeqHash]uint8 // bit t: on tier t; never 0
	labels map[kv.SeqHash]kv.MoELabel
	hidden bool
}

type naivePool struct {
	blocks map[kv.SeqHash]kv.MoELabel // the zero label if it has none
	access map[kv.Worker]bool
}

func newNaive() *naive {
	return &naive{workers: map[kv.Worker]*naiveWorker{}, pools: map[kv.PoolShare]*naivePool{}}
}

func (n *naive) worker(w kv.Worker) *naiveWorker {
	if n.workers[w] == nil {
		n.workers[w] = &naiveWorker{on: map[kv.SeqHash]uint8{}, labels: map[kv.SeqHash]kv.MoELabel{}}
	}
	return n.workers[w]
}

func (n *naive) pool(p kv.PoolShare) *naivePool {
	if n.pools[p] == nil {
		n.pools[p] = &naivePool{blocks: map[kv.SeqHash]kv.MoELabel{}, access: map[kv.Worker]bool{}}
	}
	return n.pools[p]
}

// unlist removes the workers which were on a list, are on none now, and need not be kept.
func (n *naive) unlist(workers map[kv.Worker]bool) {
	for w := range workers {
		listed := false
		for _, p := range n.pools {
			listed = listed || p.access[w]
		}
		if x := n.workers[w]; x != nil && !listed && len(x.on) == 0 && !x.hidden {
			delete(n.workers, w)
		}
	}
}

func (n *naive) apply(w kv.Worker, ev kv.Event) {
	x := n.worker(w)
	switch ev.Kind {
	case kv.Stored:
		seq := ev.Parent
		for i, b := range ev.Blocks {
			seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
			x.on[seq] |= 1 << ev.Tier
			if len(ev.Labels) == len(ev.Blocks) {
				delete(x.labels, seq)
				if ev.Labels[i].Has != 0 {
					x.labels[seq] = ev.Labels[i]
				}
			}
		}
	case kv.Removed:
		for _, seq := range ev.Seqs {
			if x.on[seq] &^= 1 << ev.Tier; x.on[seq] == 0 {
				delete(x.on, seq)
				delete(x.labels, seq)
			}
		}
	case kv.Cleared:
		clear(x.on)
		clear(x.labels)
	}
}

// held reports whether seq is held by a worker or in a pool.
func (n *naive) held(seq kv.SeqHash) bool {
	for _, w := range n.workers {
		if w.on[seq] != 0 {
			return true
		}
	}
	for _, p := range n.pools {
		if _, ok := p.blocks[seq]; ok {
			return true
		}
	}
	return false
}

func (n *naive) place(p kv.PoolShare, seqs []kv.SeqHash, labels []kv.MoELabel) int {
	x, placed := n.pool(p), 0
	for i, seq := range seqs {
		if n.held(seq) {
			x.blocks[seq] = kv.MoELabel{}
			if labels != nil {
				x.blocks[seq] = labels[i]
			}
			placed++
		}
	}
	return placed
}

func (n *naive) attachable(w kv.Worker, seq kv.SeqHash) bool {
	for _, p := range n.pools {
		if _, ok := p.blocks[seq]; ok && p.access[w] {
			return true
		}
	}
	return false
}

// labelled reports whether w's copy of a block, or one which it can attach, has a label which moe asks for.
func (n *naive) labelled(w kv.Worker, seq kv.SeqHash, moe *kv.MoEQuery) bool {
	if l, ok := n.workers[w].labels[seq]; ok && moe.MatchesLabel(l) {
		return true
	}
	for _, p := range n.pools {
		if l, ok := p.blocks[seq]; ok && p.access[w] && moe.MatchesLabel(l) {
			return true
		}
	}
	return false
}

// match walks along chain block by block, for each worker and tier.
func (n *naive) match(chain []kv.SeqHash, moe *kv.MoEQuery) []kv.Overlap {
	var out []kv.Overlap
	for w, x := range n.workers {
		if x.hidden {
			continue
		}
		o := kv.Overlap{Worker: w}
		faster := 0
		for t := range kv.Tiers {
			depth := 0
			for ; depth < len(chain); depth++ {
				seq := chain[depth]
				if x.on[seq]&(1<<(t+1)-1) == 0 && (t < int(kv.TierPool) || !n.attachable(w, seq)) {
					break
				}
			}
			o.Blocks[t] = depth - faster
			faster = depth
		}
		if faster == 0 {
			continue
		}
		for _, seq := range chain[:faster] {
			if n.attachable(w, seq) {
				o.Attachable++
			}
			if moe != nil && n.labelled(w, seq, moe) {
				o.Labelled++
			}
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b kv.Overlap) int { return a.Worker.Compare(b.Worker) })
	return out
}

// blocks returns the blocks of w, as AppendBlocks does.
func (n *naive) blocks(w kv.Worker) []Block {
	var out []Block
	if n.workers[w] == nil {
		return nil
	}
	for seq, on := range n.workers[w].on {
		for t := range kv.Tier(kv.Tiers) {
			if on>>t&1 != 0 {
				out = append(out, Block{Seq: seq, Tier: t})
			}
		}
	}
	slices.SortFunc(out, func(a, b Block) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Tier, b.Tier)) })
	return out
}

// sizes returns the expected Stats, without the fields which depend on the implementation.
func (n *naive) sizes() Stats {
	all := map[kv.SeqHash]bool{}
	s := Stats{Workers: len(n.workers), Pools: len(n.pools)}
	for _, w := range n.workers {
		s.Entries += len(w.on)
		for seq := range w.on {
			all[seq] = true
		}
		if w.hidden {
			s.Hidden++
		}
	}
	for _, p := range n.pools {
		s.Pooled += len(p.blocks)
		for seq := range p.blocks {
			all[seq] = true
		}
	}
	s.Blocks = len(all)
	return s
}
