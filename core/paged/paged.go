// Package paged is the paged KV cache and the batch scheduler of an engine: a pool of blocks with prefix
// reuse, and the choice of the next batch.
//
// A [Scheduler] is a value without goroutine, clock or randomness. A shell, be it a real engine or a
// simulator, drives it in a loop:
//
//	s.Step(&step)        // what to compute: sequences, tokens, block tables
//	…compute, sample…
//	s.Commit(sampled)    // it was computed; these are the next tokens
//	s.RemoveSequence(id) // for each sequence which ended
//	s.AppendEvents(nil)  // what changed in the cache
//
// # Schedule
//
// Batching is continuous: sequences join and leave between steps. A step spends its token budget first on
// sequences which need one token, then on running prefills, in chunks, then on admission from the queue,
// first come, first served. A sequence which does not fit blocks the sequences after it. When blocks run
// out, the newest running sequence is preempted by recompute: it gives up its blocks and returns to the
// front of the queue. So running and then waiting sequences are always in order of arrival, the oldest is
// never preempted and advances in every step, and every sequence is eventually served.
//
// # Blocks
//
// A block which is full and computed is registered: its key is its [kv.SeqHash], all sequences with the
// same prefix share it, and it stays after its last sequence ends until its space is needed, least recently
// used first. Sequences release their blocks last to first, and a holder of a block holds all blocks before
// it. So the LRU order is also leaf first, and no block outlives the one which it extends.
//
// XXH3 with a public seed can be forged, so a hash is never trusted: a hit also compares the token ids, the
// media and their offsets, the salt, and the identity of the previous block. Blocks which collide stay
// private.
//
// If two sequences compute the same block at once, the first to commit registers it. The other then
// replaces its own block by that one in its table, and frees its own. K and V are equal bit for bit, and
// there is one event.
//
// # Cost
//
// A step costs O(1) per scheduled sequence and block. Each token of a prompt is hashed and compared once
// per admission. In steady state only the growth of the sequences allocates. A scheduler costs memory for
// what it has used, not for what it may use.
package paged

import (
	"penstock/core/fault"
	"penstock/core/kv"
)

// SeqID identifies a sequence; the shell chooses it.
type SeqID uint64

// Sequence is a sequence to serve. AddSequence copies what it keeps.
type Sequence struct {
	ID   SeqID
	Salt kv.Salt
	// Tokens are the prompt and the output so far, if the sequence was started elsewhere.
	Tokens []kv.Token
	// Prompt is how many of Tokens are prompt, at least 1.
	Prompt int
	// Media are the objects whose placeholders are among Tokens, in any order.
	Media []kv.Media
	// Reuse off makes the sequence neither use nor fill the cache, so that each of its tokens is computed
	// for it. It is for sequences whose intermediate results are wanted, not only their K and V. A Work of
	// it with Start 0 computes it from the beginning.
	Reuse Switch
}

// Work is the part of one sequence in a batch. The scheduler owns its slices, which are valid until Commit.
type Work struct {
	ID SeqID
	// Start is the number of tokens whose K and V are in the cache already.
	Start int
	// Tokens must be computed; they have the positions Start, Start+1, …
	Tokens []kv.Token
	// Blocks is the block table up to Start+len(Tokens): position p lives in
	// block Blocks[p/BlockSize], at slot p%BlockSize. It may differ from the
	// table of the step before.
	Blocks []int32
	// Prefill is how many of Tokens were known when the sequence was added or last preempted. The others
	// were generated since, one per step.
	Prefill int
	// Sample says that the logits of the last token give the sequence's next one.
	Sample bool
	// Cached is the number of prompt tokens that came from the cache when the
	// sequence was first admitted, or were fetched. It stays the same after a preemption.
	Cached int
	// Fetched is the number of tokens before Start whose K and V must be fetched from [Config.Remote]
	// before anything of this step is computed.
	Fetched int
}

// Step is a planned batch. Passing the same Step to every call of [Scheduler.Step] saves the allocations.
type Step struct {
	// Work is in order of arrival; it is empty if there is nothing to do.
	Work []Work
	// Preempted sequences gave up their blocks and wait again; newest first.
	Preempted []SeqID
	// Failed sequences have MaxTokens tokens, cannot grow, and were not removed in time. The scheduler has
	// dropped them.
	Failed []SeqID
}

// SampledToken is the next token of a sequence.
type SampledToken struct {
	ID    SeqID
	Token kv.Token
}

// Stats are a scheduler's figures at one moment. The uint64 fields count from its creation.
type Stats struct {
	Running int // sequences in the batch
	Waiting int // sequences queued or preempted

	UsedBlocks   int // held by sequences
	CachedBlocks int // kept for reuse only
	FreeBlocks   int // empty

	// PrefillTokens are the tokens of sequences, running or waiting, which were known when the sequences
	// were added or preempted and are not computed yet.
	PrefillTokens int

	PromptTokens uint64 // in prompts admitted, each prompt once
	CachedTokens uint64 // of those, from the cache or fetched
	// FetchedTokens were fetched from Config.Remote, also after a preemption.
	FetchedTokens uint64
	Preemptions   uint64
	Evictions     uint64 // blocks evicted to make room
	Collisions    uint64 // full blocks not registered because their hash was taken
}

// Scheduler decides what an engine computes and where it keeps K and V. It is not safe for concurrent use.
type Scheduler struct {
	cfg  Config
	pool blockPool

	byID    map[SeqID]*seqState
	running sequenceQueue
	waiting sequenceQueue // the preempted, then the others, in order of arrival

	preempted int           // waiting sequences which ran before
	arrivals  uint64        // sequences added
	budget    int           // tokens left in the Step being planned
	gate      admissionGate // says when to look at the head of the queue again
	hits      []int32       // scratch of matchPrefix
	stats     Stats         // the fields which are counted as they change
}

// New returns a Scheduler with an empty cache, or the problems of cfg.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{
		cfg:  cfg,
		pool: newPool(cfg),
		byID: map[SeqID]*seqState{},
	}, nil
}

// MaxTokens returns the largest number of tokens, prompt plus output, of a sequence: MaxContext, or the
// capacity of the pool if that is less. The shell ends a sequence which reaches it.
func (s *Scheduler) MaxTokens() int { return s.cfg.maxTokens() }

// Stats returns the current figures. It costs O(1).
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

// AddSequence puts a sequence at the end of the queue. It returns a *fault.Error for a sequence which is
// empty or could never be served (Invalid), for one beyond MaxWaiting (Overloaded), and for an ID in use
// (Conflict).
func (s *Scheduler) AddSequence(seq Sequence) error {
	if err := s.validateSequence(seq); err != nil {
		return err
	}
	hasher, err := kv.NewHasher(s.cfg.BlockSize, seq.Salt)
	if err != nil {
		return fault.New(fault.Internal, "paged: hasher: %w", err)
	}
	s.arrivals++
	q := newSeqState(seq, s.arrivals, hasher, s.cfg.BlockSize)
	if s.cfg.Reuse == Off {
		q.reuse = Off
	}
	s.byID[q.id] = q
	s.waiting.pushBack(q)
	s.stats.PrefillTokens += q.prefillLeft()
	return nil
}

// validateSequence returns why seq cannot be queued, or nil.
func (s *Scheduler) validateSequence(seq Sequence) error {
	switch n := len(seq.Tokens); {
	case n == 0:
		return fault.InvalidParam("prompt", "the prompt has no tokens: send at least one")
	case seq.Prompt < 1 || seq.Prompt > n:
		return fault.New(fault.Invalid, "the prompt is said to be %d of %d tokens: it must be at least 1 and at most all", seq.Prompt, n)
	case n >= s.MaxTokens():
		return fault.InvalidParam("prompt", "the prompt has %d tokens, and %d are the most that prompt and output may have together: shorten it", n, s.MaxTokens())
	}
	if _, used := s.byID[seq.ID]; used {
		return fault.New(fault.Conflict, "sequence %d is already being served: use another id", seq.ID)
	}
	// Preempted sequences were admitted before and do not count.
	if s.waiting.len-s.preempted >= s.cfg.MaxWaiting {
		return fault.New(fault.Overloaded, "%d requests are already waiting: retry later", s.waiting.len)
	}
	return nil
}

// RemoveSequence removes a sequence, finished or aborted, in any state, and reports whether there was one.
// Its full blocks stay cached, and the last one is evicted first. Between Step and Commit its part of the
// step is lost.
func (s *Scheduler) RemoveSequence(id SeqID) bool {
	q, ok := s.byID[id]
	if !ok {
		return false
	}
	s.forgetSequence(q)
	return true
}

func (s *Scheduler) forgetSequence(q *seqState) {
	s.stats.PrefillTokens -= q.prefillLeft()
	delete(s.byID, q.id)
	s.leaveQueue(q)
	s.releaseBlocks(q)
}

// leaveQueue removes q from its queue.
func (s *Scheduler) leaveQueue(q *seqState) {
	if q.active {
		s.running.remove(q)
		q.active = false
	} else {
		s.waiting.remove(q)
		if q.admitted {
			s.preempted--
		}
	}
}

// releaseBlocks releases q's blocks, last to first, so that blocks which extend others are evicted before
// them.
func (s *Scheduler) releaseBlocks(q *seqState) {
	for i := len(q.blocks) - 1; i >= 0; i-- {
		s.pool.dropHolder(q.blocks[i])
	}
	q.blocks = q.blocks[:0]
	q.registered, q.tip, q.sealed, q.fetched = 0, 0, false, 0
	s.gate.closed = false
}

// AppendDump appends events which describe the whole cache to dst: Cleared, then Stored events, parents
// first. It does not consume the events of AppendEvents: a caller which follows the cache from here on must
// take those first. The caller owns the events.
func (s *Scheduler) AppendDump(dst []kv.Event) []kv.Event {
	return s.pool.appendDump(append(dst, kv.Event{Kind: kv.Cleared}))
}

// appendDump describes the tree of registered blocks as runs. A run goes from a block down to a leaf by the
// first child; the other children start runs later.
func (p *blockPool) appendDump(dst []kv.Event) []kv.Event {
	t := p.buildTree()
	hashes := make([]kv.BlockHash, 0, len(p.index))
	for len(t.starts) > 0 {
		first := t.starts[len(t.starts)-1]
		t.starts = t.starts[:len(t.starts)-1]

		from := len(hashes)
		for b := first; b != noBlock; b = t.firstChild[b] {
			hashes = append(hashes, p.blocks[b].hash)
			if b != first {
				t.addStarts(t.sibling[b])
			}
		}
		e := kv.Event{Kind: kv.Stored, Start: p.blocks[first].index, Blocks: hashes[from:len(hashes):len(hashes)]}
		if parent := p.blocks[first].parent; parent != noBlock {
			e.Parent = p.blocks[parent].seq
		}
		dst = append(dst, e)
	}
	return dst
}

// blockTree is the tree of registered blocks by physical block number; noBlock is no block.
type blockTree struct {
	firstChild, sibling []int32
	starts              []int32 // of runs; their parents are described already
}

// buildTree links the registered blocks. Blocks without a parent are the first starts.
func (p *blockPool) buildTree() blockTree {
	n := len(p.blocks)
	links := make([]int32, 2*n)
	for i := range links {
		links[i] = noBlock
	}
	t := blockTree{firstChild: links[:n], sibling: links[n:]}
	for i := n - 1; i >= 0; i-- {
		blk := &p.blocks[i]
		switch {
		case blk.state != stateRegistered:
		case blk.parent == noBlock:
			t.starts = append(t.starts, int32(i))
		default:
			t.sibling[i], t.firstChild[blk.parent] = t.firstChild[blk.parent], int32(i)
		}
	}
	return t
}

// addStarts adds b and its later siblings to the starts.
func (t *blockTree) addStarts(b int32) {
	for ; b != noBlock; b = t.sibling[b] {
		t.starts = append(t.starts, b)
	}
}
