package prefix

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"penstock/core/kv"
)

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestBytesAreTheHeap compares Stats.Bytes with the growth of the heap.
func TestBytesAreTheHeap(t *testing.T) {
	label := kv.MoELabel{Has: kv.HasExpert, Layer: 1, Expert: 2}
	for _, c := range []struct {
		name string
		fill func() *Index
	}{
		{"long pages of one worker each", func() *Index { x, _ := fill(t, 4, 1, 100, 400); return x }},
		{"pages of many workers", func() *Index { x, _ := fill(t, 64, 40_000, 1, 1); return x }},
		{"sets of many words", func() *Index { x, _ := fill(t, 2000, 200, 1, 3); return x }},
		{"a page for each block", func() *Index { x, _ := fill(t, 4, 1, 10_000, 1); return x }},
		{"tiers, labels and pools", func() *Index {
			x := mustNew(t, Config{})
			rng := rand.New(rand.NewPCG(1, 2))
			for i := range 4000 {
				ev := kv.Event{Kind: kv.Stored, Tier: kv.Tier(i % kv.Tiers)}
				for range 20 {
					ev.Blocks = append(ev.Blocks, kv.BlockHash(rng.Uint64()))
					ev.Labels = append(ev.Labels, label)
				}
				for w := range 2 {
					x.ApplyEvent(kv.Worker{ID: kv.WorkerID(w)}, ev)
					ev.Blocks, ev.Labels = ev.Blocks[:10], ev.Labels[:10]
				}
				x.AddToPool(kv.PoolShare(i%3), chainOf(ev.Blocks), ev.Labels)
			}
			return x
		}},
		{"grown block by block", func() *Index {
			x := mustNew(t, Config{})
			for _, chain := range grownChains(300, 50) {
				for i := range chain {
					ev := kv.Event{Kind: kv.Stored, Blocks: chain[i : i+1], Start: uint32(i)}
					if i > 0 {
						ev.Parent = chainOf(chain[:i])[i-1]
					}
					x.ApplyEvent(kv.Worker{ID: 1}, ev)
				}
			}
			return x
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := heap()
			x := c.fill()
			x.scratchSeqs, x.edit = nil, pageEdit{} // scratch is not part of an entry
			grown := float64(heap()) - float64(before)
			// The runtime allocates some memory of its own at the same time.
			if got := float64(x.Stats().Bytes); math.Abs(got-grown) > 0.07*grown+32<<10 {
				t.Errorf("%.0f bytes are said, the heap grew by %.0f", got, grown)
			}
			runtime.KeepAlive(x)
		})
	}
}

// grownChains returns n chains of random blocks.
func grownChains(n, length int) [][]kv.BlockHash {
	rng := rand.New(rand.NewPCG(3, 4))
	out := make([][]kv.BlockHash, n)
	for i := range out {
		for range length {
			out[i] = append(out[i], kv.BlockHash(rng.Uint64()))
		}
	}
	return out
}

// churn is a fleet in which conversations start and end. They share some prefixes, which change over time,
// and workers are removed and return under other names.
type churn struct {
	x      *Index
	rng    *rand.Rand
	shared [][]kv.BlockHash
	live   [][]conversation // by worker, oldest first
	epoch  int
}

type conversation struct {
	seqs []kv.SeqHash
}

const churnWorkers, churnConversations = 16, 40

func (c *churn) worker(w int) kv.Worker {
	return kv.Worker{ID: kv.WorkerID(w + 1 + c.epoch/1000*churnWorkers)}
}

func (c *churn) random(n int) []kv.BlockHash {
	out := make([]kv.BlockHash, n)
	for i := range out {
		out[i] = kv.BlockHash(c.rng.Uint64())
	}
	return out
}

// step stores a conversation and removes the oldest.
func (c *churn) step() {
	if c.epoch%50 == 0 {
		c.shared[c.rng.IntN(len(c.shared))] = c.random(100)
	}
	if c.epoch%1000 == 999 { // all are removed
		for w := range c.live {
			c.x.DropWorker(c.worker(w))
			c.live[w] = nil
		}
	}
	c.epoch++
	for w := range c.live {
		blocks := append(append([]kv.BlockHash(nil), c.shared[c.rng.IntN(len(c.shared))]...), c.random(20+c.rng.IntN(60))...)
		c.x.ApplyEvent(c.worker(w), kv.Event{Kind: kv.Stored, Blocks: blocks})
		c.live[w] = append(c.live[w], conversation{chainOf(blocks)})
		if len(c.live[w]) > churnConversations {
			c.x.ApplyEvent(c.worker(w), kv.Event{Kind: kv.Removed, Seqs: c.live[w][0].seqs})
			c.live[w] = c.live[w][1:]
		}
	}
}

// TestMemoryIsReclaimed: after thousands of replacements the index and the heap take as much memory as
// before; after all workers are removed nothing is left.
func TestMemoryIsReclaimed(t *testing.T) {
	c := &churn{x: mustNew(t, Config{}), rng: rand.New(rand.NewPCG(5, 6)), shared: make([][]kv.BlockHash, 4), live: make([][]conversation, churnWorkers)}
	for i := range c.shared {
		c.shared[i] = c.random(100)
	}
	settle := func() (bytes, grown float64) {
		for range 500 {
			c.step()
		}
		return float64(c.x.Stats().Bytes), float64(heap())
	}
	bytes, before := settle()
	for range 3500 { // and the 500 of settle: at the same point between removals
		c.step()
	}
	later, after := settle()
	// The heap includes the test's own lists, whose lengths have not changed.
	if later < bytes*0.95 || later > bytes*1.05 || after > before*1.05 {
		t.Errorf("%.0f bytes became %.0f, a heap of %.0f became one of %.0f", bytes, later, before, after)
	}
	if s := c.x.Stats(); s.Ghosts > s.Blocks {
		t.Errorf("%d ghosts among %d blocks", s.Ghosts, s.Blocks)
	}
	if err := c.x.Check(); err != nil {
		t.Fatal(err)
	}
	for w := range c.live {
		c.x.DropWorker(c.worker(w))
	}
	got := c.x.Stats()
	if got.Counts = (Counts{}); got != (Stats{}) {
		t.Errorf("all left: %+v", got)
	}
}
