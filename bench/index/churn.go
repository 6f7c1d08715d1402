package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/splitmix"
)

const (
	churnWorkers       = 64      // at a time
	churnBlocks        = 8_192   // cache of each
	churnPrompts       = 16      // common prompts in use at a time
	churnRenewEvery    = 5_000   // events after which one of them is replaced
	churnReplaceEvery  = 100_000 // events after which a worker is replaced
	churnClearEvery    = 370_000 // events after which a worker clears its cache
	churnMaxPrompt     = 600     // blocks of a prompt
	churnMaxEvent      = 64      // most blocks of an event
	churnWarmupEvents  = 500_000 // events before the first heap measurement: caches were full several times
	churnHeapTolerance = 0.05    // allowed relative change of the heap
)

// churner makes the events of engines with full caches: prompts are stored in pieces, grow block by block and
// are evicted, while prompts go out of use and workers are replaced. It does not allocate after it was made,
// so that the heap is the index's.
type churner struct {
	index   *prefix.Index
	rng     splitmix.Source
	workers []churnWorker
	next    kv.WorkerID
	prompts [churnPrompts][]kv.BlockHash
	renewed int
	events  int
	blocks  []kv.BlockHash
	gone    []kv.SeqHash
}

// churnWorker is a worker's cache: a ring of its stored blocks, prompt by prompt.
type churnWorker struct {
	id         kv.WorkerID
	leafFirst  bool
	ring       []kv.SeqHash
	first      []bool // whether a prompt begins there
	head, used int    // of the ring
	open       kv.SeqHash
	length     int // of the prompt which ends in open
	want       int
	prompt     int // the common prompt at its beginning
}

func newChurner(index *prefix.Index) *churner {
	c := &churner{index: index, rng: 3, workers: make([]churnWorker, churnWorkers), blocks: make([]kv.BlockHash, 0, churnMaxEvent), gone: make([]kv.SeqHash, 0, churnMaxPrompt)}
	for i := range c.workers {
		w := &c.workers[i]
		w.ring, w.first = make([]kv.SeqHash, churnBlocks), make([]bool, churnBlocks)
		w.leafFirst = i%2 == 0
		c.next++
		w.id = c.next
	}
	for i := range c.prompts {
		c.prompts[i] = make([]kv.BlockHash, 100)
		c.renewPrompt(i)
	}
	return c
}

// renewPrompt replaces a common prompt.
func (c *churner) renewPrompt(i int) {
	for j := range c.prompts[i] {
		c.prompts[i][j] = kv.BlockHash(c.rng.Next())
	}
}

// stepWorker makes a worker store something, and evict as much if it is full.
func (c *churner) stepWorker() {
	w := &c.workers[c.rng.Below(len(c.workers))]
	if w.length >= w.want {
		w.open, w.length, w.want = 0, 0, 1+c.rng.Below(churnMaxPrompt)
		w.prompt = c.rng.Below(churnPrompts)
	}
	n := 1 // as while decoding
	if c.rng.Below(3) == 0 {
		n = min(1+c.rng.Below(churnMaxEvent), w.want-w.length)
	}
	for w.used+n > len(w.ring) {
		c.evictPrompt(w)
	}
	c.storeBlocks(w, n)
}

func (c *churner) storeBlocks(w *churnWorker, n int) {
	common := c.prompts[w.prompt]
	c.blocks = c.blocks[:0]
	ev := kv.Event{Kind: kv.Stored, Start: uint32(w.length), Parent: w.open}
	for range n {
		b := kv.BlockHash(c.rng.Next())
		if w.length < len(common) {
			b = common[w.length]
		}
		at := (w.head + w.used) % len(w.ring)
		w.open = kv.ExtendSeq(w.open, uint32(w.length), b)
		w.ring[at], w.first[at] = w.open, w.length == 0
		w.used++
		w.length++
		c.blocks = append(c.blocks, b)
	}
	ev.Blocks = c.blocks
	c.applyEvent(w, ev)
}

// evictPrompt evicts the oldest prompt: for a leaf-first worker all of it, in pieces from its end; for others
// a piece from its beginning.
func (c *churner) evictPrompt(w *churnWorker) {
	c.gone = c.gone[:0]
	for w.used > 0 && len(c.gone) < cap(c.gone) && (len(c.gone) == 0 || !w.first[w.head]) {
		c.gone = append(c.gone, w.ring[w.head])
		w.head = (w.head + 1) % len(w.ring)
		w.used--
		if !w.leafFirst && len(c.gone) == churnMaxEvent {
			break
		}
	}
	if w.leafFirst {
		slices.Reverse(c.gone)
	}
	for piece := range slices.Chunk(c.gone, churnMaxEvent) {
		c.applyEvent(w, kv.Event{Kind: kv.Removed, Seqs: piece})
	}
}

func (c *churner) applyEvent(w *churnWorker, ev kv.Event) {
	c.index.ApplyEvent(kv.Worker{ID: w.id}, ev)
	c.events++
}

// runEvents applies this many events, with all churn.
func (c *churner) runEvents(events int) {
	for until := c.events + events; c.events < until; {
		before := c.events
		c.stepWorker()
		if crossesMultiple(before, c.events, churnRenewEvery) {
			c.renewPrompt(c.renewed % churnPrompts)
			c.renewed++
		}
		if crossesMultiple(before, c.events, churnReplaceEvery) {
			w := &c.workers[c.rng.Below(len(c.workers))]
			c.index.DropWorker(kv.Worker{ID: w.id})
			c.next++
			w.id = c.next
			w.clearCache()
		}
		if crossesMultiple(before, c.events, churnClearEvery) {
			w := &c.workers[c.rng.Below(len(c.workers))]
			c.applyEvent(w, kv.Event{Kind: kv.Cleared})
			w.clearCache()
		}
	}
}

// crossesMultiple reports whether a multiple of n is in (before, now].
func crossesMultiple(before, now, n int) bool { return before/n != now/n }

func (w *churnWorker) clearCache() { w.head, w.used, w.length, w.want = 0, 0, 0, 0 }

// fillCaches fills all caches again, without churn.
func (c *churner) fillCaches() {
	for c.hasRoom() {
		c.stepWorker()
	}
}

// hasRoom reports whether a cache has more room than an eviction frees.
func (c *churner) hasRoom() bool {
	return slices.ContainsFunc(c.workers, func(w churnWorker) bool { return w.used < len(w.ring)-churnMaxPrompt })
}

// runChurn applies events and compares the heap before and after: with equally full caches, and after all
// workers were removed.
func runChurn(out io.Writer, events int) error {
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		return fmt.Errorf("make index: %w", err)
	}
	c := newChurner(index)
	bare := heapInUse()
	c.runEvents(churnWarmupEvents)
	c.fillCaches()
	full, entries := heapInUse()-bare, index.Stats().Entries
	fmt.Fprintf(out, "before: heap of the index %d bytes, %d entries, %.1f bytes each\n", full, entries, float64(full)/float64(entries))
	c.events = 0
	begin := time.Now()
	c.runEvents(events)
	took := time.Since(begin)
	c.fillCaches()
	after, now := heapInUse()-bare, index.Stats().Entries
	fmt.Fprintf(out, "after %d events (%.0f/s) and %d workers: heap of the index %d bytes (%+.2f %%), %d entries, %.1f bytes each\n",
		events, float64(events)/took.Seconds(), c.next, after, 100*float64(after-full)/float64(full), now, float64(after)/float64(now))
	if err := index.Check(); err != nil {
		return err
	}
	for i := range c.workers {
		index.DropWorker(kv.Worker{ID: c.workers[i].id})
	}
	left := heapInUse() - bare
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintf(out, "after all workers left: heap of the index %d bytes (%.2f %% of the full one), %d entries; the process has %d MiB of the system\n",
		left, 100*float64(left)/float64(full), index.Stats().Entries, (m.Sys-m.HeapReleased)>>20)
	runtime.KeepAlive(c)
	switch each := float64(after) / float64(now) / (float64(full) / float64(entries)); {
	case each > 1+churnHeapTolerance || each < 1-churnHeapTolerance:
		return fmt.Errorf("churn: the bytes of an entry are %.3f of what they were", each)
	case float64(left) > churnHeapTolerance*float64(full):
		return fmt.Errorf("churn: %d bytes are left of what no worker holds", left)
	}
	return nil
}
