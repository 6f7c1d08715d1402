// Package embindex is the index of embedding caches: which workers hold the encoder rows of an object. Entries are
// named by embcache.EventKey; the events of package embfeed say what changes.
package embindex

import (
	"cmp"
	"fmt"

	"penstock/core/kv"
)

// Config bounds an Index.
type Config struct {
	// MaxHoldings is how many pairs of a worker and an entry are kept. Each takes about 100 bytes.
	MaxHoldings int
}

// EnsureDefaults fills in what is not set: 1,048,576 holdings.
func (c *Config) EnsureDefaults() { c.MaxHoldings = cmp.Or(c.MaxHoldings, 1<<20) }

// Validate reports what is wrong with c. Call EnsureDefaults first.
func (c *Config) Validate() error {
	if c.MaxHoldings < 1 || c.MaxHoldings > 1<<30 {
		return fmt.Errorf("embindex: between 1 and %d holdings can be kept, not %d", 1<<30, c.MaxHoldings)
	}
	return nil
}

// Index says which workers hold which entries. When it is full, a new holding takes the place of the oldest one of
// the worker which has most: a worker that reports too much displaces itself first. So the index may know less than
// it was told, never more.
//
// It is not safe for concurrent use, except that any number of goroutines may look up while none changes it.
type Index struct {
	cfg      Config
	holdings []holding
	unused   []int32 // of holdings
	byKey    map[kv.Digest]int32
	workers  []holder
	vacant   []int32 // of workers
	byWorker map[kv.Worker]int32
	stats    Stats
}

// none is no index.
const none = -1

// holding is one entry at one worker.
type holding struct {
	key    kv.Digest
	worker int32 // of Index.workers
	// next is the next holding of the key, in the order of the workers.
	next int32
	// older and newer are the neighbours among the worker's holdings, by when they were added.
	older, newer int32
}

// holder is a worker with holdings, or a hidden one.
type holder struct {
	worker         kv.Worker
	oldest, newest int32 // of its holdings
	count          int
	hidden         bool
	used           bool
}

// Stats are figures of an index.
type Stats struct {
	Workers  int // which hold something
	Keys     int // which a worker holds
	Holdings int // pairs of the two
	// Displaced counts holdings that were dropped because the index was full.
	Displaced uint64
}

// New returns an empty index.
func New(cfg Config) (*Index, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Index{cfg: cfg, byKey: map[kv.Digest]int32{}, byWorker: map[kv.Worker]int32{}}, nil
}

// AppendHolders appends the workers which hold an entry to dst, ascending, without hidden ones. It allocates only if
// dst must grow.
func (x *Index) AppendHolders(dst []kv.Worker, key *kv.Digest) []kv.Worker {
	at, ok := x.byKey[*key]
	if !ok {
		return dst
	}
	for ; at != none; at = x.holdings[at].next {
		if w := &x.workers[x.holdings[at].worker]; !w.hidden {
			dst = append(dst, w.worker)
		}
	}
	return dst
}

// Add records that a worker holds an entry. It does nothing if that is known.
func (x *Index) Add(w kv.Worker, key kv.Digest) {
	if x.findHolding(w, &key) != none {
		return
	}
	if x.stats.Holdings >= x.cfg.MaxHoldings {
		x.stats.Displaced++
		x.dropHolding(x.workers[x.largestHolder()].oldest)
	}
	owner := x.openHolder(w)
	i := takeIndex(&x.holdings, &x.unused)
	of := &x.workers[owner]
	x.holdings[i] = holding{key: key, worker: owner, next: none, older: of.newest, newer: none}
	if of.newest == none {
		of.oldest = i
		x.stats.Workers++
	} else {
		x.holdings[of.newest].newer = i
	}
	of.newest = i
	of.count++
	x.stats.Holdings++
	x.linkKey(i)
}

// Remove records that a worker no longer holds an entry.
func (x *Index) Remove(w kv.Worker, key kv.Digest) {
	if i := x.findHolding(w, &key); i != none {
		x.dropHolding(i)
	}
}

// ClearWorker forgets what a worker holds; a hidden one stays hidden.
func (x *Index) ClearWorker(w kv.Worker) {
	at, ok := x.byWorker[w]
	for ok && x.workers[at].count > 0 { // the worker's place is not used again before it holds nothing
		x.dropHolding(x.workers[at].oldest)
	}
}

// DropWorker forgets what a worker holds, and that it is hidden.
func (x *Index) DropWorker(w kv.Worker) {
	x.ClearWorker(w)
	x.ShowWorker(w)
}

// HideWorker leaves a worker out of answers until ShowWorker or DropWorker: what it holds now is not known.
func (x *Index) HideWorker(w kv.Worker) { x.workers[x.openHolder(w)].hidden = true }

// ShowWorker ends HideWorker.
func (x *Index) ShowWorker(w kv.Worker) {
	if at, ok := x.byWorker[w]; ok {
		x.workers[at].hidden = false
		x.closeHolder(at)
	}
}

// HeldBy returns how many entries a worker holds.
func (x *Index) HeldBy(w kv.Worker) int {
	at, ok := x.byWorker[w]
	if !ok {
		return 0
	}
	return x.workers[at].count
}

// Stats returns the figures of now.
func (x *Index) Stats() Stats {
	s := x.stats
	s.Keys = len(x.byKey)
	return s
}

// findHolding returns the holding of an entry by a worker, or none.
func (x *Index) findHolding(w kv.Worker, key *kv.Digest) int32 {
	owner, known := x.byWorker[w]
	at, held := x.byKey[*key]
	if !known || !held {
		return none
	}
	for ; at != none; at = x.holdings[at].next {
		if x.holdings[at].worker == owner {
			return at
		}
	}
	return none
}

// linkKey puts a holding into the list of its key.
func (x *Index) linkKey(i int32) {
	h := &x.holdings[i]
	first, ok := x.byKey[h.key]
	if !ok || x.compareWorkers(i, first) < 0 {
		if ok {
			h.next = first
		}
		x.byKey[h.key] = i
		return
	}
	at := first
	for next := x.holdings[at].next; next != none && x.compareWorkers(next, i) < 0; next = x.holdings[at].next {
		at = next
	}
	h.next, x.holdings[at].next = x.holdings[at].next, i
}

// compareWorkers orders holdings by worker.
func (x *Index) compareWorkers(a, b int32) int {
	return x.workers[x.holdings[a].worker].worker.Compare(x.workers[x.holdings[b].worker].worker)
}

// dropHolding takes a holding out of all lists.
func (x *Index) dropHolding(i int32) {
	h := &x.holdings[i]
	if first := x.byKey[h.key]; first != i {
		at := first
		for x.holdings[at].next != i {
			at = x.holdings[at].next
		}
		x.holdings[at].next = h.next
	} else if h.next != none {
		x.byKey[h.key] = h.next
	} else {
		delete(x.byKey, h.key)
	}
	of := &x.workers[h.worker]
	if h.older == none {
		of.oldest = h.newer
	} else {
		x.holdings[h.older].newer = h.newer
	}
	if h.newer == none {
		of.newest = h.older
	} else {
		x.holdings[h.newer].older = h.older
	}
	of.count--
	x.stats.Holdings--
	owner := h.worker
	*h = holding{next: none}
	x.unused = append(x.unused, i)
	if of.count == 0 {
		x.stats.Workers--
		x.closeHolder(owner)
	}
}

// openHolder returns the index of a worker, which it adds if it is new.
func (x *Index) openHolder(w kv.Worker) int32 {
	if at, ok := x.byWorker[w]; ok {
		return at
	}
	at := takeIndex(&x.workers, &x.vacant)
	x.workers[at] = holder{worker: w, oldest: none, newest: none, used: true}
	x.byWorker[w] = at
	return at
}

// closeHolder removes a worker which has no entries and is not hidden.
func (x *Index) closeHolder(at int32) {
	if of := &x.workers[at]; of.used && of.count == 0 && !of.hidden {
		delete(x.byWorker, of.worker)
		*of = holder{oldest: none, newest: none}
		x.vacant = append(x.vacant, at)
	}
}

// largestHolder returns the worker which holds most, the first one of equals.
func (x *Index) largestHolder() int32 {
	best := int32(none)
	for i := range x.workers {
		of := &x.workers[i]
		if !of.used || best != none && (of.count < x.workers[best].count ||
			of.count == x.workers[best].count && of.worker.Compare(x.workers[best].worker) > 0) {
			continue
		}
		best = int32(i)
	}
	return best
}

// takeIndex returns the index of an unused element of all.
func takeIndex[T any](all *[]T, unused *[]int32) int32 {
	if n := len(*unused); n > 0 {
		i := (*unused)[n-1]
		*unused = (*unused)[:n-1]
		return i
	}
	var zero T
	*all = append(*all, zero)
	return int32(len(*all) - 1)
}

// Check returns the first invariant that does not hold: each holding is in the list of its key, in the order of the
// workers, and in that of its worker, and all are counted.
func (x *Index) Check() error {
	total := 0
	for key, first := range x.byKey { // the order does not matter: any error is a defect
		for at, last := first, int32(none); at != none; last, at = at, x.holdings[at].next {
			switch h := &x.holdings[at]; {
			case h.key != key:
				return fmt.Errorf("embindex: a holding of %x is in the list of %x", h.key, key)
			case last != none && x.compareWorkers(last, at) >= 0:
				return fmt.Errorf("embindex: the holders of %x are out of order", key)
			}
			total++
		}
	}
	if total != x.stats.Holdings || total+len(x.unused) != len(x.holdings) || total > x.cfg.MaxHoldings {
		return fmt.Errorf("embindex: %d holdings in lists, %d counted, %d of %d unused", total, x.stats.Holdings, len(x.unused), len(x.holdings))
	}
	return x.checkHolders()
}

func (x *Index) checkHolders() error {
	total, workers := 0, 0
	for i := range x.workers {
		of := &x.workers[i]
		if at, ok := x.byWorker[of.worker]; of.used && (!ok || at != int32(i)) || of.used && of.count == 0 && !of.hidden {
			return fmt.Errorf("embindex: worker %v with %d holdings, hidden %t, is found: %t", of.worker, of.count, of.hidden, ok)
		}
		n, last := 0, int32(none)
		for at := of.oldest; at != none; last, at = at, x.holdings[at].newer {
			if h := &x.holdings[at]; h.older != last || h.worker != int32(i) {
				return fmt.Errorf("embindex: holding %d is in the list of worker %v behind %d", at, of.worker, last)
			}
			n++
		}
		if n != of.count || last != of.newest {
			return fmt.Errorf("embindex: worker %v has %d holdings, %d are counted", of.worker, n, of.count)
		}
		if n > 0 {
			workers++
		}
		total += n
	}
	if total != x.stats.Holdings || workers != x.stats.Workers || len(x.byWorker)+len(x.vacant) != len(x.workers) {
		return fmt.Errorf("embindex: %d workers have %d holdings, the figures are %+v", workers, total, x.stats)
	}
	return nil
}
