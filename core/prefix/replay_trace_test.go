package prefix_test

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/splitmix"
)

// prompt is a request of a small trace: its blocks and their prefixes.
type prompt struct {
	blocks []kv.BlockHash
	chain  []kv.SeqHash
}

// tracePrompts returns requests as in a trace of conversations: some start after a common prompt, others
// continue an earlier one from any position. Most are some hundred blocks long and leave one another
// anywhere.
func tracePrompts(seed uint64, n int) []prompt {
	rng := splitmix.Source(seed)
	common := make([]kv.BlockHash, 97)
	for i := range common {
		common[i] = kv.BlockHash(rng.Next())
	}
	var out []prompt
	for range n {
		var p prompt
		switch from := rng.Below(10); {
		case from < 6 && len(out) > 0:
			old := out[max(0, len(out)-1-rng.Below(40))]
			p.blocks = slices.Clone(old.blocks)
			if from < 2 { // and leaves it anywhere
				p.blocks = p.blocks[:1+rng.Below(len(p.blocks))]
			}
		case from < 9:
			p.blocks = slices.Clone(common[:1+rng.Below(len(common))])
		}
		for range 1 + rng.Below(1+rng.Below(160)) {
			p.blocks = append(p.blocks, kv.BlockHash(rng.Next()))
		}
		if len(p.blocks) > 700 {
			p.blocks = p.blocks[:700]
		}
		var seq kv.SeqHash
		for i, b := range p.blocks {
			seq = kv.ExtendSeq(seq, uint32(i), b)
			p.chain = append(p.chain, seq)
		}
		out = append(out, p)
	}
	return out
}

// truth is what each worker holds, by brute force: for each prefix one bit per tier.
type truth map[kv.Worker]map[kv.SeqHash]uint8

// depth counts the leading blocks of chain that w has on tiers up to t.
func (o truth) depth(w kv.Worker, chain []kv.SeqHash, t kv.Tier) int {
	for i, seq := range chain {
		if o[w][seq]&(1<<(t+1)-1) == 0 {
			return i
		}
	}
	return len(chain)
}

// match returns the answer which Match must give, without the workers in hidden.
func (o truth) match(chain []kv.SeqHash, hidden map[kv.Worker]bool) []kv.Overlap {
	var out []kv.Overlap
	for w := range o {
		if hidden[w] {
			continue
		}
		v := kv.Overlap{Worker: w}
		faster := 0
		for t := range kv.Tier(kv.Tiers) {
			d := o.depth(w, chain, t)
			v.Blocks[t], faster = d-faster, d
		}
		if faster > 0 {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b kv.Overlap) int { return a.Worker.Compare(b.Worker) })
	return out
}

func (o truth) entries() int {
	n := 0
	for _, held := range o {
		n += len(held)
	}
	return n
}

// engine is one worker's cache: the blocks on each tier, in the order of their last use, and what happens to
// blocks which do not fit.
type engine struct {
	worker kv.Worker
	used   [kv.Tiers][]kv.SeqHash // the oldest first
}

// replayer applies the same events to an index and to the truth.
type replayer struct {
	t     *testing.T
	rng   splitmix.Source
	index *prefix.Index
	truth truth
	// places finds any prompt of the trace with a prefix, and the position in it.
	places map[kv.SeqHash]place
	match  prefix.Match
	got    []kv.Overlap
}

type place struct {
	p *prompt
	i int
}

func newReplayer(t *testing.T, seed uint64, prompts []prompt) *replayer {
	t.Helper()
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &replayer{t: t, rng: splitmix.Source(seed), index: index, truth: truth{}, places: map[kv.SeqHash]place{}}
	for i := range prompts {
		for j, seq := range prompts[i].chain {
			r.places[seq] = place{&prompts[i], j}
		}
	}
	return r
}

func (r *replayer) held(w kv.Worker) map[kv.SeqHash]uint8 {
	if r.truth[w] == nil {
		r.truth[w] = map[kv.SeqHash]uint8{}
	}
	return r.truth[w]
}

// store stores p.blocks[from:to].
func (r *replayer) store(w kv.Worker, p *prompt, from, to int, t kv.Tier) {
	ev := kv.Event{Kind: kv.Stored, Tier: t, Start: uint32(from), Blocks: p.blocks[from:to]}
	if from > 0 {
		ev.Parent = p.chain[from-1]
	}
	r.index.ApplyEvent(w, ev)
	for _, seq := range p.chain[from:to] {
		r.held(w)[seq] |= 1 << t
	}
}

func (r *replayer) remove(w kv.Worker, t kv.Tier, seqs []kv.SeqHash) {
	r.index.ApplyEvent(w, kv.Event{Kind: kv.Removed, Tier: t, Seqs: seqs})
	for _, seq := range seqs {
		if r.held(w)[seq] &^= 1 << t; r.held(w)[seq] == 0 {
			delete(r.held(w), seq)
		}
	}
}

// ask compares the answer for every worker and every tier.
func (r *replayer) ask(what string, chain []kv.SeqHash, hidden map[kv.Worker]bool) {
	r.t.Helper()
	r.index.Match(&r.match, chain, nil)
	r.got = r.match.AppendOverlaps(r.got[:0])
	want := r.truth.match(chain, hidden)
	if !slices.Equal(r.got, want) {
		r.t.Fatalf("%s: a prompt of %d blocks:\ngot  %v\nwant %v", what, len(chain), r.got, want)
	}
	for t := range kv.Tier(kv.Tiers) {
		r.runs(what, t, want)
	}
}

// runs compares the runs of a tier with the right overlaps.
func (r *replayer) runs(what string, t kv.Tier, want []kv.Overlap) {
	r.t.Helper()
	left := map[kv.Worker]int{}
	for _, o := range want {
		depth := 0
		for i := range t + 1 {
			depth += o.Blocks[i]
		}
		if depth > 0 {
			left[o.Worker] = depth
		}
	}
	before := 1 << 30
	for _, run := range r.match.DepthRuns(t) {
		if run.Depth >= before || run.Depth < 1 || run.Workers.Len() == 0 {
			r.t.Fatalf("%s: tier %v: a run of depth %d with %d workers after one of depth %d", what, t, run.Depth, run.Workers.Len(), before)
		}
		before = run.Depth
		n := 0
		for w := range run.Workers.All() {
			n++
			if left[w] != run.Depth {
				r.t.Fatalf("%s: tier %v: worker %v is in the run of depth %d, want %d", what, t, w, run.Depth, left[w])
			}
			delete(left, w)
		}
		if n != run.Workers.Len() {
			r.t.Fatalf("%s: tier %v: a set of %d workers says it has %d", what, t, n, run.Workers.Len())
		}
	}
	if len(left) > 0 {
		r.t.Fatalf("%s: tier %v: runs leave out %v", what, t, left)
	}
}

// dump compares the blocks which the index has for each worker with the truth.
func (r *replayer) dump(what string) {
	r.t.Helper()
	if err := r.index.Check(); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	if got, want := r.index.Stats().Entries, r.truth.entries(); got != want {
		r.t.Fatalf("%s: %d entries, want %d", what, got, want)
	}
	for w, held := range r.truth {
		var want []prefix.Block
		for seq, on := range held {
			for t := range kv.Tier(kv.Tiers) {
				if on>>t&1 != 0 {
					want = append(want, prefix.Block{Seq: seq, Tier: t})
				}
			}
		}
		slices.SortFunc(want, func(a, b prefix.Block) int {
			return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Tier, b.Tier))
		})
		if got := r.index.AppendBlocks(nil, w); !slices.Equal(got, want) {
			r.t.Fatalf("%s: worker %v: %d facts, want %d, or others", what, w, len(got), len(want))
		}
		if got := r.index.HeldBlocks(w); got != len(held) {
			r.t.Fatalf("%s: worker %v holds %d blocks, want %d", what, w, got, len(held))
		}
	}
}

// serve lets e compute p: blocks which are not on the device are stored, in parts of a random size, and
// blocks which no longer fit move one tier down, as how says.
func (r *replayer) serve(e *engine, p *prompt, how evictor) {
	w := e.worker
	own := r.truth.depth(w, p.chain, kv.TierDevice)
	if r.rng.Below(8) == 0 {
		own = 0 // and stores all of it again
	}
	pieces := slices.Collect(pieces(&r.rng, own, len(p.chain)))
	if r.rng.Below(8) == 0 {
		slices.Reverse(pieces) // children before their parents
	}
	for _, at := range pieces {
		r.store(w, p, at[0], at[1], kv.TierDevice)
	}
	for t := range kv.Tier(kv.Tiers) {
		if t == kv.TierDevice {
			e.use(p.chain, t, how.rootFirst)
		}
		gone := e.evict(&r.rng, t, how)
		if len(gone) == 0 {
			continue
		}
		if t < how.tiers-1 {
			r.lower(e, t+1, gone)
		}
		r.remove(w, t, gone)
	}
}

// lower stores seqs on a lower tier, each in an event of its own, as engines do which offload block by block.
func (r *replayer) lower(e *engine, t kv.Tier, seqs []kv.SeqHash) {
	for _, seq := range seqs {
		at, ok := r.places[seq]
		if !ok {
			r.t.Fatalf("block %x is of no prompt", uint64(seq))
		}
		r.store(e.worker, at.p, at.i, at.i+1, t)
	}
	e.use(seqs, t, true)
}

// evictor says how caches evict blocks.
type evictor struct {
	name      string
	bound     int     // blocks of a tier
	tiers     kv.Tier // that engines have
	rootFirst bool    // the first block of a prompt is its oldest
	holes     int     // additional blocks at random positions evicted each time
}

// use makes seqs the most recently used on a tier.
func (e *engine) use(seqs []kv.SeqHash, t kv.Tier, rootFirst bool) {
	now := map[kv.SeqHash]bool{}
	for _, seq := range seqs {
		now[seq] = true
	}
	e.used[t] = slices.DeleteFunc(e.used[t], func(seq kv.SeqHash) bool { return now[seq] })
	at := len(e.used[t])
	e.used[t] = append(e.used[t], seqs...)
	if !rootFirst {
		slices.Reverse(e.used[t][at:])
	}
}

// evict removes the blocks for which a tier has no room, and holes.
func (e *engine) evict(rng *splitmix.Source, t kv.Tier, how evictor) []kv.SeqHash {
	over := max(0, len(e.used[t])-how.bound)
	gone := slices.Clone(e.used[t][:over])
	e.used[t] = slices.Delete(e.used[t], 0, over)
	for range how.holes {
		if n := len(e.used[t]); n > 0 {
			at := rng.Below(n)
			gone = append(gone, e.used[t][at])
			e.used[t] = slices.Delete(e.used[t], at, at+1)
		}
	}
	return gone
}

// pieces splits [from, to) at random.
func pieces(rng *splitmix.Source, from, to int) iter.Seq[[2]int] {
	return func(yield func([2]int) bool) {
		for from < to {
			end := min(to, from+1+rng.Below(130))
			if !yield([2]int{from, end}) {
				return
			}
			from = end
		}
	}
}

// TestReplayAgreesWithOracle looks up each request of a trace, then stores it on a worker with a bounded
// cache: every answer is exact for every worker and tier.
func TestReplayAgreesWithOracle(t *testing.T) {
	for _, c := range []struct {
		workers, requests int
		how               evictor
	}{
		{5, 300, evictor{name: "leaf first", bound: 2500, tiers: 1}},
		{5, 300, evictor{name: "root first", bound: 2500, tiers: 1, rootFirst: true}},
		{70, 500, evictor{name: "leaf first", bound: 900, tiers: 1}},
		{70, 500, evictor{name: "holes", bound: 900, tiers: 1, holes: 5}},
		{9, 300, evictor{name: "offload", bound: 1200, tiers: 3}},
		{9, 300, evictor{name: "offload with holes", bound: 1200, tiers: 4, rootFirst: true, holes: 9}},
	} {
		t.Run(fmt.Sprintf("workers=%d/%s", c.workers, c.how.name), func(t *testing.T) {
			const seed = 5
			t.Parallel()
			prompts := tracePrompts(seed, c.requests)
			r := newReplayer(t, seed, prompts)
			engines := make([]engine, c.workers)
			for i := range engines {
				engines[i].worker = kv.Worker{ID: kv.WorkerID(1 + i/3), Rank: uint32(i % 3)}
			}
			for i := range prompts {
				what := fmt.Sprintf("seed %d, request %d", seed, i)
				r.ask(what, prompts[i].chain, nil)
				r.serve(&engines[i%len(engines)], &prompts[i], c.how)
				if i%7 == 0 {
					r.ask(what+", again", prompts[i].chain, nil)
				}
				switch r.rng.Below(60) {
				case 0:
					r.leave(&engines[r.rng.Below(len(engines))])
				case 1:
					r.clear(&engines[r.rng.Below(len(engines))])
				}
				if i%100 == 99 {
					r.dump(what)
				}
			}
			for i := range prompts {
				r.ask("in the end", prompts[i].chain, nil)
			}
			r.dump("in the end")
			r.empty()
		})
	}
}

// leave removes a worker; the next request to it comes from a new one.
func (r *replayer) leave(e *engine) {
	_, known := r.truth[e.worker]
	if got := r.index.DropWorker(e.worker); got != known {
		r.t.Fatalf("drop of %v: %t, want %t", e.worker, got, known)
	}
	delete(r.truth, e.worker)
	*e = engine{worker: kv.Worker{ID: e.worker.ID + 1000, Rank: e.worker.Rank}}
}

func (r *replayer) clear(e *engine) {
	r.index.ApplyEvent(e.worker, kv.Event{Kind: kv.Cleared})
	r.truth[e.worker] = map[kv.SeqHash]uint8{}
	*e = engine{worker: e.worker}
}

// empty removes all workers and checks that nothing is left.
func (r *replayer) empty() {
	r.t.Helper()
	for _, w := range slices.SortedFunc(maps.Keys(r.truth), kv.Worker.Compare) {
		r.index.DropWorker(w)
	}
	if s := r.index.Stats(); s.Workers != 0 || s.Blocks != 0 || s.Entries != 0 {
		r.t.Fatalf("after all have left: %+v", s)
	}
	if err := r.index.Check(); err != nil {
		r.t.Fatal(err)
	}
}
