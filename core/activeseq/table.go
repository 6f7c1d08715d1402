// Package activeseq predicts the load of workers from the requests which were sent to them: which sequences
// are active where, how many prompt tokens they still have to prefill, and how many distinct blocks they keep
// alive.
//
// It records the router's own decisions at the moment they are made: a worker's report of its load comes too
// late for the requests of one burst.
//
// It can also count reservations which other routers of the same workers made:
// [ReservationTable.AdoptReservation] adds them, a [Journal] receives this table's own, and
// core/activeseq/replica carries them between the two.
//
// A ReservationTable has one owner: its methods must not run concurrently. All requests of a table are cut
// into blocks of the same size.
package activeseq

import (
	"errors"
	"time"

	"penstock/core/kv"
)

// Config is the policy of a ReservationTable.
type Config struct {
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// TTL is how long a reservation made here lasts without [ReservationTable.RenewReservation]. An older one
	// was leaked; it is freed and counted.
	TTL time.Duration
	// Journal, if not nil, receives what changes here.
	Journal Journal
}

// EnsureDefaults fills in the fields which are not set: 16 tokens and 10 minutes.
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
		errs = append(errs, errors.New("activeseq: block size must be at least 1 token"))
	}
	if c.TTL < 0 {
		errs = append(errs, errors.New("activeseq: ttl must be positive"))
	}
	return errors.Join(errs...)
}

// AttemptKey names a reservation: one attempt of a request.
type AttemptKey struct {
	ID      string
	Attempt uint32
}

// Demand is the load which a request brings to a worker.
type Demand struct {
	// Chain are the SeqHashes of the prompt's full blocks in order. It may be nil if the prompt was not
	// hashed: its blocks then count as shared with no other request.
	Chain        []kv.SeqHash
	PromptTokens int
	// OverlapBlocks are the leading blocks which the worker has already.
	OverlapBlocks int
	// ExpectedOutput is a hint of how many tokens will be generated; 0 if none. With a hint, blocks which no
	// other request uses weigh less the closer the request is to its end, see [Load].
	ExpectedOutput int
	// ExpectedPrefill is the expected duration of the prefill once it starts; 0 if unknown. With it, the
	// prompt tokens of the worker's oldest prefill become fewer as time passes.
	ExpectedPrefill time.Duration
	// MediaTokens are the prompt's tokens of media which the engine has to encode.
	MediaTokens int
	// HeldMedia is the part of MediaTokens whose embeddings the engine is expected to hold. It is no less load, but
	// times are learned without it. ExpectedFirst is the expected time to the first token; 0 if unknown.
	// PlacementOf returns both.
	HeldMedia     int
	ExpectedFirst time.Duration
}

// Load is the load of one worker.
type Load struct {
	Requests int
	// PrefillTokens are the prompt tokens still to be computed. For the worker's oldest prefill, if its
	// duration e is expected and it has been the oldest for d, only ceil(tokens * (1 - d/e)) count, and none
	// once d is over e: engines compute prompts one after another.
	PrefillTokens int
	// Blocks are the distinct blocks which active requests keep alive: full blocks of prompts, with shared
	// ones counted once, and blocks of output. A block which only one request uses weighs f = max(0, 1 -
	// g/e), in steps of 1/65536 rounded down, if e tokens of output are expected and g were generated: it
	// will soon be free. The sum is rounded to the nearest block, halves up. Without expectations it is an
	// exact count.
	Blocks int
	// OutputTokens are the tokens still expected by the requests' hints.
	OutputTokens int
}

// ReservationTable holds the active reservations.
type ReservationTable struct {
	cfg Config
	// records holds each reservation at an index which does not change; indexes of freed ones are in vacant.
	// byKey finds them. oldest and newest are the ends of their list by age (none: -1).
	records        []reservationRecord
	vacant         []int32
	byKey          map[AttemptKey]int32
	oldest, newest int32
	workers        map[kv.Worker]*workerLoad
	expired        uint64
	time           kv.Mono // the latest time passed to the table
	coarrivals     coarrivals
	publications   publications
	finished       []FinishedPrefill
}

const noIndex = -1

// fullWeight is the weight of a block which counts in full.
const fullWeight = 1 << 16

// reservationRecord is one reservation.
type reservationRecord struct {
	key           AttemptKey
	worker        *workerLoad
	renewed       kv.Mono
	older, newer  int32  // neighbours in the list by age
	generation    uint32 // of the index, so that a ReservationRef to an earlier user of it is void
	adopted       bool   // made by another router: it has no key
	journalNumber uint64 // identifies it to the journal; 0 if the journal does not know it

	prefillTokens   int           // prompt tokens still to be computed
	expectedPrefill time.Duration // 0 if unknown
	prevPrefill     int32         // neighbours in the worker's queue of prefills
	nextPrefill     int32
	chain           []kv.SeqHash // blocks named
	lastRun         int32        // last run of the chain in workerLoad.chains; noIndex if the chain is empty
	soleBlocks      int          // blocks of the chain which no other request uses
	unnamedBlocks   int          // counted blocks which no other request can share
	blockWeight     int64        // of each block which only it uses, up to fullWeight
	promptTokens    int          // tokens
	outputTokens    int          // so far
	expectedOutput  int          // by the hint
	answerStart     AnswerStart
	placement       Placement
	mediaTokens     int // still to be encoded
}

// workerLoad is the load of one worker, with the structures which count its blocks.
type workerLoad struct {
	id kv.Worker
	// load contains each prefill in full, and no blocks. sharedBlocks counts the blocks of more than one
	// request; soleWeight is the sum of the weights of all others.
	load         Load
	sharedBlocks int
	soleWeight   int64
	othersShare  LoadShare
	// fading counts the requests whose blocks weigh less than fullWeight.
	fading int
	// chains counts the requests which use each named block.
	chains chainTrie
	// firstPrefill and lastPrefill are the ends of the queue of prefills; firstSince is when the first one
	// became the first.
	firstPrefill, lastPrefill int32
	firstSince                kv.Mono
	prefills                  int // in the queue
	mediaTokens               int // of the queue
	// burstPrefill is the expected time of the prefills which were reserved here in the burst of number burst.
	burst        uint64
	burstPrefill time.Duration
}

// LoadShare is a part of a worker's load.
type LoadShare struct {
	Requests      int
	PrefillTokens int // without regard to elapsed time
}

// New returns a table without reservations.
func New(cfg Config) (*ReservationTable, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &ReservationTable{
		cfg:     cfg,
		byKey:   map[AttemptKey]int32{},
		oldest:  noIndex,
		newest:  noIndex,
		workers: map[kv.Worker]*workerLoad{},
	}, nil
}

// BlockSize returns the number of tokens in a block.
func (t *ReservationTable) BlockSize() int { return t.cfg.BlockSize }

// Len returns the number of reservations made here, without adopted ones.
func (t *ReservationTable) Len() int { return len(t.byKey) }

// AdoptedCount returns the number of reservations of other routers.
func (t *ReservationTable) AdoptedCount() int { return len(t.records) - len(t.vacant) - len(t.byKey) }

// ExpiredCount returns how many reservations made here were freed because they were not renewed, since the
// table was created. A value above 0 indicates a defect of the caller.
func (t *ReservationTable) ExpiredCount() uint64 { return t.expired }

// Now returns the latest time passed to the table.
func (t *ReservationTable) Now() kv.Mono { return t.time }

// AdvanceTime advances the table's time to now, as reservations and ExpireOld do. Loads are computed for the
// table's time. An earlier time changes nothing.
func (t *ReservationTable) AdvanceTime(now kv.Mono) { t.time = max(t.time, now) }
