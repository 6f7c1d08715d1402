// Package slots predicts the load of workers from what was sent to them: which
// requests are active where, how many prompt tokens they still have to prefill,
// and how many distinct blocks they keep alive.
//
// It is bookkeeping of the router's own decisions, made the moment they are made:
// a worker's report of its load comes too late for the requests of one burst.
//
// Reservations of other routers of the same workers can be counted too: [Table.Adopt]
// takes them, a [Journal] is told of our own, and core/slots/replica carries them
// between the two.
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
	// TTL is how long a reservation made here lasts without [Table.Renew]. One that is
	// older was leaked, and is freed and counted.
	TTL time.Duration
	// Journal, if not nil, is told of what changes here.
	Journal Journal
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
	// ExpectedOutput is a hint of how many tokens will be generated; 0 if none. With
	// one, the blocks that nobody else uses weigh less the closer the request is to
	// its end, see [Load].
	ExpectedOutput int
	// ExpectedPrefill is how long the prefill is believed to take once it is its
	// turn; 0 if nobody knows. With it, the prompt tokens of the prefill that is the
	// oldest of its worker become fewer as time passes.
	ExpectedPrefill time.Duration
}

// Load is the load of one worker.
type Load struct {
	Requests int
	// PrefillTokens are the prompt tokens still to be computed. Of the prefill that is
	// the oldest of the worker, if its duration e is expected and it has been the
	// oldest for d, only ceil(tokens * (1 - d/e)) count, and none once d is over e:
	// engines compute prompts one after another.
	PrefillTokens int
	// Blocks are the distinct blocks that active requests keep alive: full
	// blocks of prompts, shared ones once, and grown ones. A block that only one
	// request uses, of which e tokens are expected and g were generated, weighs
	// f = max(0, 1 - g/e), in steps of 1/65536 rounded down: it will soon be free.
	// The sum is rounded to the nearest block, halves up. Without expectations it is
	// a count, and exact.
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
	now            kv.Mono // the latest time that the table was told
}

const none = -1

// whole is the weight of a block that counts in full.
const whole = 1 << 16

// request is one reservation.
type request struct {
	key          Key
	worker       *worker
	at           kv.Mono
	older, newer int32  // neighbours in the list by age
	life         uint32 // of the place, so that a Ref of an earlier one is void
	adopted      bool   // of another router: it has no key
	number       uint64 // by which the journal knows it; 0 if it does not

	prefill  int           // prompt tokens still to be computed
	duration time.Duration // of that, expected; 0 if not known
	earlier  int32         // neighbours in the worker's queue of prefills
	later    int32
	chain    []kv.SeqHash // blocks named
	tip      int32        // the last stretch of the chain in worker.blocks; none if it has no block
	sole     int          // blocks of the chain that no other request uses
	unnamed  int          // blocks counted that no other request can share
	weight   int64        // of each block that is its alone, up to whole
	prompt   int          // tokens
	output   int          // tokens so far
	expect   int          // tokens of output by the hint
}

// worker is the load of one worker and what its blocks are counted by.
type worker struct {
	id kv.Worker
	// load has the whole of each prefill, and no blocks: those are in shared, the
	// blocks of more than one request, and alone, the weights of all others.
	load   Load
	shared int
	alone  int64
	others Share
	// fading counts the requests whose blocks weigh less than whole.
	fading int
	// blocks counts the requests that use a named block.
	blocks trie
	// first and last are the ends of the queue of prefills, and since is when the
	// first one became that.
	first, last int32
	since       kv.Mono
}

// Share is a part of a worker's load.
type Share struct {
	Requests      int
	PrefillTokens int // without regard to time
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

// Len returns the number of reservations that were made here: adopted ones do not
// count.
func (t *Table) Len() int { return len(t.byKey) }

// Adopted returns the number of reservations of other routers.
func (t *Table) Adopted() int { return len(t.requests) - len(t.vacant) - len(t.byKey) }

// Expired returns how many reservations made here were freed because they were not
// renewed, since the table was made. Anything but 0 is a defect of the caller.
func (t *Table) Expired() uint64 { return t.expired }

// Advance tells the table the time: loads are those of the latest time that it was
// told, here, with a reservation, or with Expire. A time before that changes nothing.
func (t *Table) Advance(now kv.Mono) { t.now = max(t.now, now) }
