package prefix_test

import (
	"runtime"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/splitmix"
)

const (
	churnWorkers = 32
	churnRoom    = 2048 // blocks in a worker's cache
	churnPiece   = 48   // maximum blocks of an event
)

// churner generates the events of engines with full caches: prompts which share prefixes that go out of use,
// stored in parts or block by block and removed in parts, from workers which are added and removed. It
// allocates nothing after its creation.
type churner struct {
	index   *prefix.Index
	rng     splitmix.Source
	workers [churnWorkers]churned
	common  [8][64]kv.BlockHash
	ids     kv.WorkerID
	events  int
	blocks  []kv.BlockHash
	gone    []kv.SeqHash
}

// churned is a worker: a ring of its stored blocks, the oldest first.
type churned struct {
	worker   kv.Worker
	ring     [churnRoom]kv.SeqHash
	at, used int
	tip      kv.SeqHash // of the growing prompt
	length   int
	want     int
	behind   int
}

func newChurner(index *prefix.Index) *churner {
	c := &churner{index: index, rng: 9, blocks: make([]kv.BlockHash, 0, churnPiece), gone: make([]kv.SeqHash, 0, churnPiece)}
	for i := range c.workers {
		c.join(&c.workers[i])
	}
	return c
}

// join makes w an unknown worker.
func (c *churner) join(w *churned) {
	c.ids++
	w.worker = kv.Worker{ID: c.ids}
	w.used, w.length, w.want = 0, 0, 0
}

func (c *churner) apply(w *churned, ev kv.Event) {
	c.index.ApplyEvent(w.worker, ev)
	c.events++
}

// step stores a part of a prompt on some worker, and removes the oldest blocks where there is no room.
func (c *churner) step() {
	w := &c.workers[c.rng.Below(churnWorkers)]
	if w.length == w.want {
		w.tip, w.length, w.want, w.behind = 0, 0, 1+c.rng.Below(300), c.rng.Below(len(c.common))
	}
	n := 1
	if c.rng.Below(2) == 0 {
		n = min(1+c.rng.Below(churnPiece), w.want-w.length)
	}
	if w.used+n > churnRoom {
		c.gone = c.gone[:0]
		for range churnPiece {
			c.gone = append(c.gone, w.ring[(w.at-w.used+churnRoom)%churnRoom])
			w.used--
		}
		if c.rng.Below(2) == 0 {
			slices.Reverse(c.gone)
		}
		c.apply(w, kv.Event{Kind: kv.Removed, Seqs: c.gone})
	}
	ev := kv.Event{Kind: kv.Stored, Start: uint32(w.length), Parent: w.tip}
	c.blocks = c.blocks[:0]
	for range n {
		b := kv.BlockHash(c.rng.Next())
		if w.length < len(c.common[w.behind]) {
			b = c.common[w.behind][w.length]
		}
		c.blocks = append(c.blocks, b)
		w.tip = kv.ExtendSeq(w.tip, uint32(w.length), b)
		w.ring[w.at] = w.tip
		w.at, w.used, w.length = (w.at+1)%churnRoom, w.used+1, w.length+1
	}
	ev.Blocks = c.blocks
	c.apply(w, ev)
}

// run applies some events, with prompts which go out of use and workers which are removed, and then fills all
// caches again.
func (c *churner) run(events int) {
	next := c.events
	for end := c.events + events; c.events < end; c.step() {
		if c.events < next {
			continue
		}
		next += 500
		for i, at := 0, c.rng.Below(len(c.common)); i < len(c.common[at]); i++ {
			c.common[at][i] = kv.BlockHash(c.rng.Next())
		}
		w := &c.workers[c.rng.Below(churnWorkers)]
		switch c.rng.Below(8) {
		case 0:
			c.index.DropWorker(w.worker)
			c.join(w)
		case 1:
			c.apply(w, kv.Event{Kind: kv.Cleared})
			w.used, w.length, w.want = 0, 0, 0
		}
	}
	for slices.ContainsFunc(c.workers[:], func(w churned) bool { return w.used < churnRoom-churnPiece }) {
		c.step()
	}
}

func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestChurnReturnsMemory: after 300,000 events, which replaced everything many times, the index takes as much
// memory as before, each event allocated little, and nothing is left when all workers are removed.
func TestChurnReturnsMemory(t *testing.T) {
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := newChurner(index)
	bare := heapInUse()
	c.run(50_000)
	before, entries := heapInUse()-bare, index.Stats().Entries
	c.events = 0
	var m0, m1 runtime.MemStats
	runtime.ReadMemStats(&m0)
	c.run(300_000)
	runtime.ReadMemStats(&m1)
	after, now := heapInUse()-bare, index.Stats().Entries
	each, was := float64(after)/float64(now), float64(before)/float64(entries)
	allocated := float64(m1.TotalAlloc-m0.TotalAlloc) / float64(c.events)
	t.Logf("%d entries of %.1f bytes before, %d of %.1f after %d events; %.0f bytes allocated per event",
		entries, was, now, each, c.events, allocated)
	if each > 1.05*was {
		t.Errorf("an entry takes %.1f bytes, and took %.1f before", each, was)
	}
	if allocated > 16<<10 {
		t.Errorf("an event allocates %.0f bytes", allocated)
	}
	if err := index.Check(); err != nil {
		t.Error(err)
	}
	for i := range c.workers {
		index.DropWorker(c.workers[i].worker)
	}
	if left := heapInUse() - bare; left > before/20 {
		t.Errorf("%d bytes are left of %d when no worker holds anything: %+v", left, before, index.Stats())
	}
	runtime.KeepAlive(c)
}
