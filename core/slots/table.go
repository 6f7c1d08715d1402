// Package slots predicts the load of workers from what was sent to them: which
// requests are active where, how many prompt tokens they still have to prefill,
// and how many distinct blocks they keep alive.
//
// It is bookkeeping of the router's own decisions, made the moment they are made:
// a worker's report of its load comes too late for the requests of one burst.
//
// A Table has one owner: no method may run beside another one. All requests of a
// table are cut into blocks of the same size.
package slots

import (
	"errors"
	"time"

	"penstock/core/kv"
)

// Config is a Table's policy.
type Config struct {
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// TTL is how long a reservation may live. One that is older was leaked, and
	// is freed and counted. It must exceed the longest request.
	TTL time.Duration
}

// EnsureDefaults fills in what is not set: 16 tokens and 10 minutes.
func (c *Config) EnsureDefaults() {
	if c.BlockSize == 0 {
		c.BlockSize = 16
	}
	if c.TTL == 0 {
		c.TTL = 10 * time.Minute
	}
}

// Validate reports every problem of c at once.
func (c *Config) Validate() error {
	var errs []error
	if c.BlockSize < 1 {
		errs = append(errs, errors.New("slots: block size must be at least 1 token"))
	}
	if c.TTL < 0 {
		errs = append(errs, errors.New("slots: ttl must be positive"))
	}
	return errors.Join(errs...)
}

// Key names a reservation: one attempt of a request.
type Key struct {
	ID      string
	Attempt uint32
}

// Demand is what a request asks of a worker.
type Demand struct {
	// Chain are the SeqHashes of the prompt's full blocks in order. It may be
	// nil when nobody hashed the prompt: its blocks then count as shared with
	// no other request.
	Chain        []kv.SeqHash
	PromptTokens int
	// OverlapBlocks are the leading blocks that the worker has already.
	OverlapBlocks int
	// ExpectedOutput is a hint of how many tokens will be generated; 0 if none.
	ExpectedOutput int
}

// Load is the load of one worker.
type Load struct {
	Requests int
	// PrefillTokens are the prompt tokens still to be computed.
	PrefillTokens int
	// Blocks are the distinct blocks that active requests keep alive: full
	// blocks of prompts, shared ones once, and grown ones.
	Blocks int
	// OutputTokens are those still expected by the requests' hints.
	OutputTokens int
}

// Table holds the active reservations.
type Table struct {
	cfg Config
	// requests holds each reservation's record at a place that does not change;
	// places of freed ones are in vacant. byKey finds them, and oldest and
	// newest are the ends of the list of them by age (none: -1).
	requests       []request
	vacant         []int32
	byKey          map[Key]int32
	oldest, newest int32
	workers        map[kv.Worker]*worker
	expired        uint64
}

const none = -1

// request is one reservation.
type request struct {
	key          Key
	worker       *worker
	at           kv.Mono
	older, newer int32 // neighbours in the list by age

	prefill int          // prompt tokens still to be computed
	chain   []kv.SeqHash // blocks named and counted in worker.refs
	unnamed int          // blocks counted that no other request can share
	prompt  int          // tokens
	output  int          // tokens so far
	expect  int          // tokens of output by the hint
}

// worker is the load of one worker and what its blocks are counted by.
type worker struct {
	id   kv.Worker
	load Load
	// refs counts the requests that use a named block. Its keys are closed
	// under prefixes, since requests come and go with their whole chain.
	refs map[kv.SeqHash]int32
}

// New returns a table without reservations.
func New(cfg Config) (*Table, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Table{
		cfg:     cfg,
		byKey:   map[Key]int32{},
		oldest:  none,
		newest:  none,
		workers: map[kv.Worker]*worker{},
	}, nil
}

// BlockSize returns the number of tokens in a block.
func (t *Table) BlockSize() int { return t.cfg.BlockSize }

// Len returns the number of reservations.
func (t *Table) Len() int { return len(t.byKey) }

// Expired returns how many reservations were freed because of their age since
// the table was made. Anything but 0 is a defect of whoever should free them.
func (t *Table) Expired() uint64 { return t.expired }
