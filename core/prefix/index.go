// Package prefix indexes which worker holds which blocks, and answers how much of a prompt each worker
// already has.
//
// The index is keyed by [kv.SeqHash], which identifies a whole prefix. So a worker's holdings are a plain
// set: a block counts for a prompt when the worker holds it and every block before it, and nothing has to be
// linked or relinked. That makes the answer exact for any order of stores and removals: a block whose
// predecessor was evicted stays in the set, matches nothing, and matches again when the predecessor is stored
// again. For the same reason a block stored under a parent which the worker does not hold (an orphan) is kept
// like any other: the arrival of its parent attaches it, and it need not be parked anywhere. The number of
// such stores is counted, since a healthy feed has few.
//
// # Data structures
//
// Up to 64 consecutive blocks of one chain are a page (page.go). It has the hashes of its blocks and, for
// each group of workers which hold the same of them, one mask of 64 bits. Pages begin where the position in
// the chain is a multiple of 64, and where a chain leaves another one. Since a SeqHash identifies everything
// before it, a prompt which has a page's last hash has all of the page: one comparison stands for up to 64
// blocks and all workers. Two tables lead to pages: heads finds one by its first block (heads.go), which is
// all that a lookup needs; blocks finds every block (blocks.go), for parents and removals.
//
// Up to 8 consecutive whole pages which the same workers hold are a span (spans.go): the first one has the
// last hashes of all, and a lookup passes as many of them as the prompt has in one step. Stored events tell
// which page follows which, so an index which was loaded from a snapshot has no spans until chains are stored
// again.
//
// # Concurrency
//
// One goroutine at a time may change an Index or call its methods other than Match. Any number of goroutines
// may call [Index.Match] concurrently, each with its own [Match]. They take no lock and never wait: a page is
// never changed but replaced, by one atomic store. What Match says of one page was true at one moment during
// the call; two pages may be seen at two moments. So the answer for a worker whose holdings do not change is
// exact under any load of events of others.
package prefix

import (
	"cmp"
	"errors"
	"math"
	"sync/atomic"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Config bounds an Index.
type Config struct {
	// MaxBlocks is how many blocks the index may record for one worker. Further stores are refused and
	// counted: the index then knows less than the truth, and a misbehaving worker cannot exhaust memory.
	MaxBlocks int
	// MaxBytes is how much memory the index may take, as Stats counts it. Beyond it, blocks which are new to
	// a worker are refused and counted.
	MaxBytes int
	// Seed determines where blocks are in the index's tables, and nothing visible outside. It should be
	// random, and kept secret if others choose the hashes of blocks: otherwise they can make each block take
	// as long as all before it.
	Seed uint64
}

// EnsureDefaults fills in the fields which are not set: 4 Mi blocks, 8 GiB (1 GiB on 32-bit processors).
func (c *Config) EnsureDefaults() {
	c.MaxBlocks = cmp.Or(c.MaxBlocks, 4<<20)
	if c.MaxBytes == 0 {
		c.MaxBytes = min(8<<30, math.MaxInt/2)
	}
}

// Validate reports every problem of c at once.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxBlocks < 0 {
		errs = append(errs, fault.New(fault.Invalid, "prefix: max blocks must not be negative"))
	}
	if c.MaxBytes < 0 {
		errs = append(errs, fault.New(fault.Invalid, "prefix: max bytes must not be negative"))
	}
	return errors.Join(errs...)
}

// Index maps prefixes to the workers which hold them.
type Index struct {
	cfg Config

	// Read by lookups.
	view  atomic.Pointer[lookupView]
	heads headIndex

	// Used only by the writer.
	pages       pageTable
	blocks      blockTable
	numbers     map[kv.Worker]uint32 // index in workers
	workers     []workerState
	freeNumbers []uint32 // indexes in workers which are free
	pools       []blockPool
	poolNumbers map[kv.PoolShare]uint32 // index in pools
	freePools   []uint32                // indexes in pools which are free
	sizes       sizeCounts
	counts      Counts
	staleSpans  []*pageSpan  // spans to check at the end of the change
	edit        pageEdit     // scratch: the page being changed
	scratchSeqs []kv.SeqHash // scratch: the prefixes of a Stored event
}

// New returns an empty index.
func New(cfg Config) (*Index, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	x := &Index{cfg: cfg, numbers: map[kv.Worker]uint32{}, poolNumbers: map[kv.PoolShare]uint32{}}
	x.heads.factor, x.blocks.factor = factorOf(cfg.Seed), factorOf(cfg.Seed)
	x.view.Store(&lookupView{levels: 1})
	return x, nil
}
