// Package paged is the memory and the schedule of an engine: a pool of KV-cache
// blocks with prefix reuse, and the batch that is computed next.
//
// A [Scheduler] is a value without goroutine, clock or randomness. A shell, be it
// a real engine or a simulator, drives it in a loop:
//
//	s.Step(&step)        // what to compute: sequences, tokens, block tables
//	…compute, sample…
//	s.Commit(sampled)    // it was computed; these are the next tokens
//	s.Remove(id)         // for each sequence that ended
//	s.Events(nil)        // what changed in the cache
//
// # Schedule
//
// Batching is continuous: sequences join and leave between steps. A step spends
// its token budget first on sequences that need one token, then on the prefills
// already running, in chunks, then on admitting from the queue, first come, first
// served; a sequence that does not fit holds up those behind it. When blocks run
// out, the newest running sequence is preempted by recompute: it gives up its
// blocks and returns to the front of the queue. So running and then waiting
// sequences are always in order of arrival, the oldest is never preempted and
// advances in every step, and every sequence is eventually served.
//
// # Blocks
//
// A block that is full and computed is registered: named by its [kv.SeqHash],
// shared by whoever has the same prefix, and kept after its last sequence is gone
// until its space is needed, least recently used first. Sequences let go of their
// blocks last to first, and whoever holds a block holds all before it; hence the
// order of disuse is also leaf first, and no block outlives the one it extends.
//
// XXH3 with a public seed can be forged, so a name is never trusted: a hit also
// compares the token ids, the media and their offsets, the salt, and that the
// block before is the very same one. What collides stays private.
//
// Of two sequences that compute the same block at once, the first to commit
// registers it; the other then takes that block into its table in place of its
// own, which is freed. K and V are equal bit for bit, and there is one event.
//
// # Cost
//
// A step costs O(1) per scheduled sequence and block; each token of a prompt is
// hashed and compared once per admission. Nothing is allocated in steady state
// but the growth of the sequences themselves. A scheduler costs memory for what it
// has used, not for what it may use.
package paged

import "penstock/core/kv"

// SeqID names a sequence; the shell chooses it.
type SeqID uint64

// Sequence is a sequence to be served. Add copies what it keeps.
type Sequence struct {
	ID   SeqID
	Salt kv.Salt
	// Tokens are the prompt and the output so far, if it was begun elsewhere.
	Tokens []kv.Token
	// Prompt is how many of Tokens are prompt, at least 1.
	Prompt int
	// Media are the objects whose placeholders are among Tokens, in any order.
	Media []kv.Media
	// Reuse off makes the sequence take nothing from the cache and leave nothing
	// in it, so that each of its tokens is computed for it: one that is wanted for
	// what the model computes on the way, not for what K and V lead to. Whenever a
	// Work of it has Start 0 it is computed from the beginning.
	Reuse Switch
}

// Work is the part of one sequence in a batch. Its slices belong to the
// scheduler and hold until Commit.
type Work struct {
	ID SeqID
	// Start is the number of tokens whose K and V are in the cache already.
	Start int
	// Tokens are to be computed; they have the positions Start, Start+1, …
	Tokens []kv.Token
	// Blocks is the block table up to Start+len(Tokens): position p lives in
	// block Blocks[p/BlockSize], at slot p%BlockSize. It may differ from the
	// table of the step before.
	Blocks []int32
	// Prefill is how many of Tokens were known when the sequence was added or last
	// preempted; the others came from steps since then, one by one.
	Prefill int
	// Sample says that the logits of the last token give the sequence's next one.
	Sample bool
	// Cached is the number of prompt tokens that came from the cache when the
	// sequence was first admitted, or were fetched. It stays the same after a preemption.
	Cached int
	// Fetched is the number of tokens before Start whose K and V are to be fetched from
	// [Config.Elsewhere] before anything of this step is computed.
	Fetched int
}

// Step is a planned batch. A caller that hands the same one to every call of
// [Scheduler.Step] saves the allocations.
type Step struct {
	// Work is in order of arrival; it is empty if there is nothing to do.
	Work []Work
	// Preempted gave up their blocks and wait again; newest first.
	Preempted []SeqID
	// Failed have Limit tokens, so they cannot grow, and were not removed in
	// time. The scheduler has forgotten them.
	Failed []SeqID
}

// Sampled is the next token of a sequence.
type Sampled struct {
	ID    SeqID
	Token kv.Token
}

// Stats are a scheduler's figures at one moment. The uint64 fields count from
// its creation.
type Stats struct {
	Running int // sequences in the batch
	Waiting int // sequences queued or preempted

	UsedBlocks   int // held by sequences
	CachedBlocks int // kept for reuse only
	FreeBlocks   int // empty

	// PrefillTokens are the tokens of sequences, running or waiting, that were
	// known when they were added or preempted and are not computed yet.
	PrefillTokens int

	PromptTokens uint64 // in prompts admitted, each prompt once
	CachedTokens uint64 // of those, served from the cache, or fetched
	// FetchedTokens are those fetched from elsewhere, also after a preemption.
	FetchedTokens uint64
	Preemptions   uint64
	Evictions     uint64 // blocks dropped from the cache to make room
	Collisions    uint64 // full blocks not registered because their name was taken
}

// Scheduler decides what an engine computes and where it keeps it. It is not
// safe for concurrent use.
type Scheduler struct {
	cfg  Config
	pool pool

	byID    map[SeqID]*sequence
	running queue
	waiting queue // the preempted, then the rest, in order of arrival

	preempted int     // of the waiting, those that ran before
	arrivals  uint64  // sequences added
	budget    int     // tokens left in the Step being planned
	gate      gate    // says when the head of the queue is worth another look
	hits      []int32 // scratch of match
	stats     Stats   // the fields that are counted as they change
}

// New returns a Scheduler with an empty cache, or what is wrong with cfg.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{
		cfg:  cfg,
		pool: newPool(cfg),
		byID: map[SeqID]*sequence{},
	}, nil
}

// Limit returns the largest number of tokens, prompt plus output, that a sequence
// may reach: MaxContext, or what the whole pool holds if that is less. The shell
// ends a sequence that reached it.
func (s *Scheduler) Limit() int { return s.cfg.limit() }

// Stats returns the figures of this moment. It costs O(1).
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.Running = s.running.len
	st.Waiting = s.waiting.len
	st.UsedBlocks = s.pool.used
	st.CachedBlocks = s.pool.cached
	st.FreeBlocks = s.cfg.Blocks - s.pool.used - s.pool.cached
	st.Evictions = s.pool.evictions
	st.Collisions = s.pool.collisions
	return st
}
