// Package prefix knows which worker holds which blocks, and answers how much of
// a prompt each worker already has.
//
// The index is keyed by [kv.SeqHash], which names a whole prefix. So a worker's
// holdings are a plain set: a block counts for a prompt when the worker holds it
// and every block before it, and nothing has to be linked or relinked. That makes
// the answer exact whatever the order of stores and removals: a block whose
// predecessor was evicted stays in the set, matches nothing, and matches again
// when the predecessor is stored anew. For the same reason a block stored under
// a parent that the worker does not hold (an orphan) is kept like any other: it
// is attached by the arrival of its parent, without being parked anywhere. The
// number of such stores is counted, since a healthy feed has few.
//
// # How it is kept
//
// Up to 64 consecutive blocks of one chain are a page (page.go). It has the hashes
// of its blocks and, for each group of workers that hold the same of them, one mask
// of 64 bits. Pages begin where the position in the chain is a multiple of 64, and
// where a chain leaves another one. Since a SeqHash names all that is before it, a
// prompt that has a page's last hash has all of the page: one comparison stands for
// up to 64 blocks and all workers. Two tables lead to pages: heads finds one by its
// first block (heads.go), which is all that a lookup needs; where finds every block
// (where.go), for parents and removals.
//
// Up to 8 whole pages in a row that the same workers hold are a span (spans.go): the first
// one has the last hashes of all, and a lookup passes as many of them as the prompt has in
// one step. Which page follows which is learned from Stored events, so an index that was
// loaded from a snapshot has no spans until chains are stored again.
//
// # Who may do what at the same time
//
// One goroutine at a time may change an Index or ask it for anything but Match; any
// number may call [Index.Match] beside it, each with a [Match] of its own. They take
// no lock and wait for nothing: a page is never changed but replaced, by one atomic
// store. What Match says of one page was true at one moment during the call; what it
// says of two pages may be of two moments. So a worker of which the holdings do not
// change is answered exactly in any storm of events of others.
package prefix

import (
	"errors"
	"math"
	"sync/atomic"

	"penstock/core/kv"
)

// Config bounds an Index.
type Config struct {
	// MaxBlocks is how many blocks one worker may be known to hold. Stores
	// beyond it are refused and counted: the index then knows less than the
	// truth, and memory stays bounded however a worker misbehaves.
	MaxBlocks int
	// MaxBytes is how much memory the index may take, as Stats counts it. Beyond it
	// blocks that are new to a worker are refused and counted.
	MaxBytes int
	// Seed decides where blocks are in the index's tables, and nothing that can be seen
	// from outside. It should be drawn, and kept secret, where others choose the hashes of
	// blocks: else they can make each block take as long as all before it.
	Seed uint64
}

// EnsureDefaults fills in what is not set: 4 Mi blocks, 8 GiB (1 GiB on processors of 32 bits).
func (c *Config) EnsureDefaults() {
	if c.MaxBlocks == 0 {
		c.MaxBlocks = 4 << 20
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = min(8<<30, math.MaxInt/2)
	}
}

// Validate reports what is wrong with c.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxBlocks < 0 {
		errs = append(errs, errors.New("prefix: max blocks must not be negative"))
	}
	if c.MaxBytes < 0 {
		errs = append(errs, errors.New("prefix: max bytes must not be negative"))
	}
	return errors.Join(errs...)
}

// Index maps prefixes to the workers that hold them.
type Index struct {
	cfg Config

	// What readers see.
	view  atomic.Pointer[view]
	heads heads

	// What the writer alone sees.
	pages   pages
	where   where
	numbers map[kv.Worker]uint32 // the place in workers
	workers []worker
	vacant  []uint32 // places that nobody has
	pools   []pool
	places  map[kv.PoolID]uint32 // the place in pools
	free    []uint32             // places that no pool has
	size    size
	counts  Counts
	stale   []*span      // spans to look at when the change is done
	edit    edit         // scratch: the page that is being changed
	seqs    []kv.SeqHash // scratch: the prefixes of a Stored event
}

// New returns an empty index.
func New(cfg Config) (*Index, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	x := &Index{cfg: cfg, numbers: map[kv.Worker]uint32{}, places: map[kv.PoolID]uint32{}}
	x.heads.factor, x.where.factor = factorOf(cfg.Seed), factorOf(cfg.Seed)
	x.view.Store(&view{levels: 1})
	return x, nil
}
