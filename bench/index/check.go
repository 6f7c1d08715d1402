package main

import (
	"container/list"
	"fmt"
	"os"
	"slices"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// lruCache is the blocks of one worker in LRU order.
type lruCache struct {
	order list.List // of kv.SeqHash, the most recent first
	at    map[kv.SeqHash]*list.Element
}

// touchBlock makes seq the most recent and reports whether it was present.
func (c *lruCache) touchBlock(seq kv.SeqHash) bool {
	if e, ok := c.at[seq]; ok {
		c.order.MoveToFront(e)
		return true
	}
	c.at[seq] = c.order.PushFront(seq)
	return false
}

// evictOldest removes the least recently used block.
func (c *lruCache) evictOldest() kv.SeqHash {
	e := c.order.Back()
	seq := c.order.Remove(e).(kv.SeqHash)
	delete(c.at, seq)
	return seq
}

// removeBlock removes seq and reports whether it was present.
func (c *lruCache) removeBlock(seq kv.SeqHash) bool {
	e, ok := c.at[seq]
	if ok {
		c.order.Remove(e)
		delete(c.at, seq)
	}
	return ok
}

// evictionOrder is an order in which a full cache evicts blocks.
type evictionOrder struct {
	name string
	// rootFirst makes the first block of a prompt the oldest, so that an eviction removes a prompt's
	// beginning.
	rootFirst bool
	// holes is how many additional blocks of each prompt are evicted, anywhere in it.
	holes int
}

var evictions = [...]evictionOrder{{name: "leaf first"}, {name: "root first", rootFirst: true}, {name: "leaf first and holes", holes: 3}}

// checkReplay looks each request up and then stores it on worker i mod N, whose cache is bounded, and
// compares every answer, before and after, with the oracle.
func (s *indexSettings) checkReplay(w *requestSet) error {
	fmt.Println(w)
	for _, n := range s.workers {
		if n < 0 {
			continue
		}
		for _, how := range evictions {
			if err := replayWith(w, n, s.cache, how); err != nil {
				return fmt.Errorf("%d workers, %s: %w", n, how.name, err)
			}
		}
	}
	return nil
}

func replayWith(w *requestSet, workers, bound int, how evictionOrder) error {
	index, err := newPrefixSubject()
	if err != nil {
		return err
	}
	r := boundedReplay{evictionOrder: how, bound: bound, index: index, truth: newHolderOracle(w.unique), caches: make([]lruCache, workers)}
	for i := range r.caches {
		r.caches[i].at = map[kv.SeqHash]*list.Element{}
	}
	fmt.Fprintf(os.Stderr, "%d workers: %s\n", workers, how.name)
	ask := index.newReader().(overlapReader)
	var before answerAgreement
	var got []kv.Overlap
	var want []holderDepth
	for i := range w.requests {
		q := &w.requests[i]
		got, want = ask.appendOverlaps(got[:0], q.chain), r.truth.matchHolders(want[:0], q.chain)
		before.compareOne(got, want)
		if before.wrong > 0 {
			return fmt.Errorf("request %d: %d workers are matched, want %d, or other depths", i, len(got), len(want))
		}
		r.serveRequest(i%workers, q)
	}
	var after answerAgreement
	after.compareAnswers(ask, r.truth, w, 1000)
	stats := index.index.Stats()
	if err := index.index.Check(); err != nil {
		return err
	}
	if after.wrong > 0 || stats.Entries != r.truth.entries {
		return fmt.Errorf("%d of %d answers are wrong in the end, and %d entries are held, want %d", after.wrong, after.asked, stats.Entries, r.truth.entries)
	}
	fmt.Printf("%d workers of %d blocks, %s: %d answers exact for every worker, %d blocks matched (%.2f %% of the oracle's), %d evicted, %d held\n",
		workers, bound, how.name, before.asked+after.asked, before.found, 100*before.matchedShare(), r.evicted, stats.Entries)
	return nil
}

// boundedReplay is a set of workers with bounded caches, which feed both index and oracle.
type boundedReplay struct {
	evictionOrder
	bound   int
	index   prefixSubject
	truth   *holderOracle
	caches  []lruCache
	evicted int
	rng     splitmix.Source
	seqs    []kv.SeqHash
}

// serveRequest makes worker w compute q. Cached blocks are not stored again, as in an engine: the event
// starts where the worker's own prefix ends, and includes everything after.
func (r *boundedReplay) serveRequest(w int, q *request) {
	c := &r.caches[w]
	own := 0
	for own < len(q.chain) && c.at[q.chain[own]] != nil {
		own++
	}
	for i := range q.chain {
		if !r.rootFirst {
			i = len(q.chain) - 1 - i // the last block becomes the oldest
		}
		c.touchBlock(q.chain[i])
	}
	for from := own; from < len(q.chain); from += eventBlocks {
		to := min(from+eventBlocks, len(q.chain))
		r.index.storeRange(w, q, from, to)
		for _, seq := range q.chain[from:to] {
			r.truth.addHolder(w, seq)
		}
	}
	r.seqs = r.seqs[:0]
	for range r.holes {
		if seq := q.chain[r.rng.Below(len(q.chain))]; c.removeBlock(seq) {
			r.seqs = append(r.seqs, seq)
		}
	}
	for len(c.at) > r.bound {
		r.seqs = append(r.seqs, c.evictOldest())
	}
	for some := range slices.Chunk(r.seqs, eventBlocks) {
		r.index.removeSeqs(w, some)
	}
	for _, seq := range r.seqs {
		r.truth.removeHolder(w, seq)
	}
	r.evicted += len(r.seqs)
}
