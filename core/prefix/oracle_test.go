package prefix

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

// tree is a few chains which leave each other near the ends of pages, as block contents and as prefixes.
type tree struct {
	blocks [][]kv.BlockHash
	chains [][]kv.SeqHash
}

// grove returns chains of 150 blocks: each leaves an earlier one at a boundary case.
func grove() tree {
	var g tree
	leaves := []int{0, 1, 2, 30, 31, 32, 33, 62, 63, 64, 65, 100, 127, 128, 129}
	for i, at := range leaves {
		var blocks []kv.BlockHash
		if i > 0 {
			blocks = append(blocks, g.blocks[i/2][:at]...)
		}
		for j := len(blocks); j < 150; j++ {
			blocks = append(blocks, block(fmt.Sprint(i, "/", j)))
		}
		g.blocks = append(g.blocks, blocks)
		g.chains = append(g.chains, chainOf(blocks))
	}
	return g
}

// chainOf returns the SeqHash of each prefix of blocks.
func chainOf(blocks []kv.BlockHash) []kv.SeqHash {
	var out []kv.SeqHash
	var seq kv.SeqHash
	for i, b := range blocks {
		seq = kv.ExtendSeq(seq, uint32(i), b)
		out = append(out, seq)
	}
	return out
}

// twins is an Index and its naive twin, which run the same operations.
type twins struct {
	x     *Index
	n     *naive
	grove tree
	m     Match

	workers *rapid.Generator[kv.Worker]
	tiers   *rapid.Generator[kv.Tier]
	pools   *rapid.Generator[kv.PoolShare]
	edges   *rapid.Generator[int]
}

func newTwins(t fataler, wide int) *twins {
	var workers []kv.Worker
	for i := range wide {
		workers = append(workers, kv.Worker{ID: kv.WorkerID(i*7%wide + 1), Rank: uint32(i % 2)})
	}
	w := &twins{
		x: mustNew(t, Config{}), n: newNaive(), grove: grove(),
		workers: rapid.SampledFrom(workers),
		tiers:   rapid.SampledFrom([]kv.Tier{kv.TierDevice, kv.TierDevice, kv.TierDevice, kv.TierHost, kv.TierDisk, kv.TierPool}),
		pools:   rapid.SampledFrom([]kv.PoolShare{3, 1, 7}),
		edges:   rapid.OneOf(rapid.SampledFrom([]int{0, 1, 30, 31, 32, 33, 62, 63, 64, 65, 126, 127, 128, 129, 150}), rapid.IntRange(0, 150)),
	}
	if wide > 64 { // all have numbers from the start, so that sets have gaps
		for _, worker := range workers {
			w.apply(worker, kv.Event{Kind: kv.Cleared})
		}
	}
	return w
}

// stretch draws a range of a chain.
func (w *twins) stretch(t *rapid.T) (c, from, to int) {
	c = rapid.IntRange(0, len(w.grove.chains)-1).Draw(t, "chain")
	from, to = w.edges.Draw(t, "from"), w.edges.Draw(t, "to")
	return c, min(from, to), max(from, to)
}

// event draws a Stored event of any range, so also of orphans and duplicates, some with labels, some with a
// wrong position.
func (w *twins) event(t *rapid.T) kv.Event {
	c, from, to := w.stretch(t)
	ev := kv.Event{Kind: kv.Stored, Tier: w.tiers.Draw(t, "tier"), Blocks: w.grove.blocks[c][from:to]}
	if from > 0 {
		ev.Start, ev.Parent = uint32(from), w.grove.chains[c][from-1]
		if rapid.IntRange(0, 5).Draw(t, "position") == 0 {
			ev.Start = uint32(rapid.IntRange(1, 1000).Draw(t, "wrong position"))
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "labels") == 0 {
		ev.Labels = someLabels(len(ev.Blocks), 0)
	}
	return ev
}

// someLabels returns labels of n blocks, some of them empty.
func someLabels(n, from int) (labels []kv.MoELabel) {
	for i := range n {
		l := kv.MoELabel{Has: kv.HasExpert, Layer: 2, Expert: uint32((from + i/20) % 3)}
		if i%5 == 0 {
			l = kv.MoELabel{}
		}
		labels = append(labels, l)
	}
	return labels
}

// removal draws the prefixes of a Removed event, in some order.
func (w *twins) removal(t *rapid.T) []kv.SeqHash {
	c, from, to := w.stretch(t)
	var seqs []kv.SeqHash
	step := rapid.SampledFrom([]int{1, 1, -1, 3}).Draw(t, "step")
	for i := from; i < to; i++ {
		at := i
		if step < 0 {
			at = to - 1 - (i - from)
		}
		if step <= 1 || (i-from)%step == 0 {
			seqs = append(seqs, w.grove.chains[c][at])
		}
	}
	return seqs
}

func (w *twins) apply(worker kv.Worker, ev kv.Event) {
	w.x.ApplyEvent(worker, ev)
	w.n.apply(worker, ev)
}

func (w *twins) store(t *rapid.T) { w.apply(w.workers.Draw(t, "worker"), w.event(t)) }

func (w *twins) remove(t *rapid.T) {
	worker, tier := w.workers.Draw(t, "worker"), w.tiers.Draw(t, "tier")
	w.apply(worker, kv.Event{Kind: kv.Removed, Tier: tier, Seqs: w.removal(t)})
}

func (w *twins) clear(t *rapid.T) {
	w.apply(w.workers.Draw(t, "worker"), kv.Event{Kind: kv.Cleared})
}

func (w *twins) drop(t *rapid.T) {
	worker := w.workers.Draw(t, "worker")
	if got, want := w.x.DropWorker(worker), w.n.workers[worker] != nil; got != want {
		t.Fatalf("drop %v: %t, want %t", worker, got, want)
	}
	delete(w.n.workers, worker)
}

func (w *twins) hide(t *rapid.T) {
	worker := w.workers.Draw(t, "worker")
	w.x.HideWorker(worker)
	w.n.worker(worker).hidden = true
}

func (w *twins) show(t *rapid.T) {
	worker := w.workers.Draw(t, "worker")
	w.x.ShowWorker(worker)
	if x := w.n.workers[worker]; x != nil {
		x.hidden = false
	}
}

func (w *twins) place(t *rapid.T) {
	p, seqs := w.pools.Draw(t, "pool"), w.removal(t)
	var labels []kv.MoELabel
	if rapid.Bool().Draw(t, "labels") {
		labels = someLabels(len(seqs), rapid.IntRange(0, 2).Draw(t, "expert"))
	}
	if got, want := w.x.AddToPool(p, seqs, labels), w.n.place(p, seqs, labels); got != want {
		t.Fatalf("placed %d blocks, want %d", got, want)
	}
}

func (w *twins) displace(t *rapid.T) {
	p, seqs := w.pools.Draw(t, "pool"), w.removal(t)
	w.x.RemoveFromPool(p, seqs)
	if w.n.pools[p] != nil {
		for _, seq := range seqs {
			delete(w.n.pools[p].blocks, seq)
		}
	}
}

func (w *twins) access(t *rapid.T) {
	p, workers := w.pools.Draw(t, "pool"), rapid.SliceOfN(w.workers, 0, 4).Draw(t, "access")
	w.x.SetAccess(p, workers)
	before := w.n.pool(p).access
	w.n.pool(p).access = map[kv.Worker]bool{}
	for _, worker := range workers {
		w.n.worker(worker)
		w.n.pool(p).access[worker] = true
	}
	w.n.unlist(before)
}

func (w *twins) dropPool(t *rapid.T) {
	p := w.pools.Draw(t, "pool")
	w.x.DropPool(p)
	before := w.n.pool(p).access
	delete(w.n.pools, p)
	w.n.unlist(before)
}

// reload continues with an index loaded from a snapshot, and from what the owner of the pools adds.
func (w *twins) reload(t *rapid.T) {
	data := w.x.AppendSnapshot(nil)
	x := mustNew(t, Config{})
	if err := x.LoadSnapshot(data); err != nil {
		t.Fatal(err)
	}
	if again := x.AppendSnapshot(nil); !bytes.Equal(again, data) {
		t.Fatalf("the snapshot of what was loaded is another one: %x, was %x", again, data)
	}
	for p, of := range w.n.pools {
		for seq, l := range of.blocks {
			if l.Has != 0 {
				x.AddToPool(p, []kv.SeqHash{seq}, []kv.MoELabel{l})
			}
		}
	}
	w.x = x
}

// agree compares all query results.
func (w *twins) agree(t *rapid.T) {
	if err := w.x.Check(); err != nil {
		t.Fatal(err)
	}
	c, _, to := w.stretch(t)
	prompt := w.grove.chains[c][:to]
	moe := rapid.SampledFrom([]*kv.MoEQuery{nil, {Layer: 2, Experts: []uint32{0, 2}}}).Draw(t, "moe")
	w.matches(t, w.x, prompt, moe)
	worker := w.workers.Draw(t, "asked")
	// cmp.Diff is slow, and most of the time there is no difference.
	if got, want := w.x.AppendBlocks(nil, worker), w.n.blocks(worker); !slices.Equal(got, want) {
		t.Fatalf("blocks of %v: -naive +index\n%s", worker, cmp.Diff(want, got))
	}
	if got, want := sizesOf(w.x), w.n.sizes(); got != want {
		t.Fatalf("sizes %+v, want %+v", got, want)
	}
}

// matches compares both forms of an answer.
func (w *twins) matches(t *rapid.T, x *Index, prompt []kv.SeqHash, moe *kv.MoEQuery) {
	x.Match(&w.m, prompt, moe)
	want := w.n.match(prompt, moe)
	if got := w.m.AppendOverlaps(nil); !slices.Equal(got, want) {
		t.Fatalf("match of %d blocks: -naive +index\n%s", len(prompt), cmp.Diff(want, got))
	}
	for tier := range kv.Tier(kv.Tiers) {
		depths := map[kv.Worker]int{}
		deeper := len(prompt) + 1
		for _, run := range w.m.DepthRuns(tier) {
			if run.Depth >= deeper || run.Depth <= 0 || run.Workers.Len() == 0 {
				t.Fatalf("a run of %d workers and depth %d after one of depth %d", run.Workers.Len(), run.Depth, deeper)
			}
			deeper = run.Depth
			for worker := range run.Workers.All() {
				depths[worker] += run.Depth
			}
		}
		for _, o := range want {
			depth := 0
			for _, blocks := range o.Blocks[:tier+1] {
				depth += blocks
			}
			if depths[o.Worker] != depth {
				t.Fatalf("runs of tier %v: %v has depth %d, want %d", tier, o.Worker, depths[o.Worker], depth)
			}
			delete(depths, o.Worker)
		}
		if len(depths) > 0 {
			t.Fatalf("runs of tier %v: %v hold nothing", tier, depths)
		}
	}
}

// sizesOf returns Stats without the fields which depend on the implementation.
func sizesOf(x *Index) Stats {
	s := x.Stats()
	s.Pages, s.Ghosts, s.Bytes, s.Counts = 0, 0, 0, Counts{}
	return s
}

// agrees runs random operations on the twins and compares after each.
func agrees(wide int) func(*rapid.T) {
	return func(t *rapid.T) {
		w := newTwins(t, wide)
		t.Repeat(map[string]func(*rapid.T){
			"":         w.agree,
			"store":    w.store,
			"store2":   w.store,
			"store3":   w.store,
			"remove":   w.remove,
			"remove2":  w.remove,
			"clear":    w.clear,
			"drop":     w.drop,
			"hide":     w.hide,
			"show":     w.show,
			"place":    w.place,
			"displace": w.displace,
			"access":   w.access,
			"droppool": w.dropPool,
			"reload":   w.reload,
		})
	}
}

func TestIndexAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees(4)) }

// TestWideIndexAgreesWithNaiveTwin has sets of several words which grow and shrink.
func TestWideIndexAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees(300)) }

func FuzzIndex(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agrees(4))) }
