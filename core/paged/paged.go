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
// queue, before all which arrived after it.
//
// # Sequences of which only a part can be computed
//
// A sequence can be added while media of its prompt are being encoded. Its Unfinished ranges of tokens cannot
// be computed until [Scheduler.FinishRange]. It is encoding as long as it needs such a range: one whose tokens
// are not all cached. The tokens before the first such range can be computed, and are computed meanwhile;
// without chunking none can until all ranges are finished.
//
//   - It is admitted as others are, and gets the blocks of all its tokens at once: they are reserved.
//   - When it can compute nothing it pauses: it keeps its blocks and its place in order of arrival, but none of
//     MaxSeqs. It resumes when a range is finished and fewer than MaxSeqs run, before others are admitted.
//   - When blocks run out, encoding sequences are preempted before others, the newest first: for a sequence
//     which gets its next token, for a running prefill, and for the admission of one which is not encoding.
//   - In the queue it blocks no other: an encoding sequence which does not fit is passed over.
//   - If it Reopens, a preemption makes all its ranges unfinished again, and so does [Scheduler.ReopenRanges].
//   - The ranges which the shell finishes for a waiting sequence suffice together with blocks which are cached, and
//     these may be evicted. So the step says of one which Reopens how much is cached when it is passed over.
//
// # Blocks which come from another worker
//
// A sequence can be added with a TransferEnd: another worker computes its tokens up to there. Until
// [Scheduler.ImportTokens] it is an encoding sequence whose unfinished range are all tokens before TransferEnd, so it is
// admitted, reserved and preempted as such, and what is said of encoding sequences holds for it, with these differences:
//
//   - It computes nothing before the transfer ends, unless all tokens up to TransferEnd are cached.
//   - If it holds blocks, a newer sequence is not admitted in its place.
//   - With LateTransfer it is not passed over in the queue for the tokens before TransferEnd: if it does not fit, encoding
//     sequences are preempted for it, or it blocks the sequences after it.
//   - [Scheduler.FinishTransfer] and a preemption end the transfer. The tokens which were not imported are then computed
//     as others are, unless [Scheduler.AwaitTransfer] begins another transfer before the sequence is admitted again.
//
// Its tokens from Reservation.Ready to TransferEnd are written into its blocks, which [Scheduler.SequenceBlocks] names,
// while steps are computed. They are shared with no other sequence until the import, even if others compute the same.
//
// # Blocks which go to another worker
//
// A sequence with Hold is held when all its tokens are computed: it generates nothing, takes none of MaxSeqs, keeps its
// blocks, and is not preempted. The shell must remove it within a bounded time, because older sequences may wait for its
// blocks.
//
// # Access to blocks outside of steps
//
// Blocks which a step takes from a sequence may be given to another in the same step. So a shell which writes to or reads
// from blocks of a sequence outside of steps must have ended that before it computes the batch, for each sequence in
// Preempted and Failed, and before it calls RemoveSequence or FinishTransfer, and must have ended writing before
// ImportTokens. An end which is local, such as that of a transfer, suffices: no other process has to agree. Until then
// the blocks are given to no other sequence. Reserved has only sequences which keep their blocks in this step.
//
// # Order and progress
//
// Running, paused and waiting sequences are each in order of arrival. Only encoding sequences are overtaken: if
// a sequence runs or pauses and an older one waits, that one was encoding. Sequences which can compute nothing
// change nothing for others, except that cached blocks are evicted for their reservations, and that newer ones wait for
// the blocks of held ones and of sequences which await a transfer.
//
// Of the sequences which hold blocks and are not encoding, the oldest is never preempted, and in every step the
// oldest which runs advances, as long as none is held. (Without chunking it may have to wait until others end.) So every
// sequence whose ranges get finished is eventually served, if held ones are removed and transfers end: a range which is
// finished stays so until its tokens are computed or, if
// the sequence Reopens, it is preempted. A shell which reopens the ranges of a sequence that was passed over finishes
// more of them afterwards, so a sequence is reopened at most once for each of its ranges between two preemptions.
//
// After a step without work which preempted no sequence, and reserved blocks for none with LateTransfer, there is none
// before something happens: a sequence is added or removed, a range is finished, tokens are imported, a transfer ends, or
// a token comes which is late. A step without work preempts only for a sequence with LateTransfer, beside held sequences,
// or beside sequences whose tokens are late. If it reserved blocks for a sequence with LateTransfer, the next step says
// what is passed over now.
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
// A step costs O(1) per scheduled sequence and block, and nothing for paused sequences. Each token of a prompt is
// hashed and compared once per admission. In steady state only the growth of the sequences allocates. A scheduler costs memory for
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
	// Unfinished are the ranges of Tokens which cannot be computed before FinishRange: of media which are being encoded,
	// and what follows one as long as nothing says where it is. They are not empty, and may be in any order and overlap.
	Unfinished []TokenRange
	// TransferEnd, if not 0, is the position up to which tokens come from another worker, by ImportTokens: the end of a
	// block, before the last token.
	TransferEnd int
	// LateTransfer says that the transfer starts when the blocks are reserved, not before. As long as the sequence waits,
	// it blocks others as one which computes these tokens does.
	LateTransfer bool
	// Hold says that the sequence is only computed, so that its blocks can be read: it keeps them until it is removed.
	Hold bool
	// Reopens says that what a range was finished with may be given up as soon as the sequence has no blocks, or has
	// computed the tokens: if it is preempted, all ranges are unfinished again.
	Reopens bool
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
	// Tokens must be computed; they have the positions Start, Start+1, … There are none if the sequence has only
	// tokens to fetch, because those after them are unfinished.
	Tokens []kv.Token
	// Blocks is the block table up to Start+len(Tokens): position p lives in
	// block Blocks[p/BlockSize], at slot p%BlockSize. It may differ from the
	// table of the step before.
	Blocks []int32
	// Prefill is how many of Tokens were known when the sequence was added or last preempted. The others
	// were generated since, one per step.
	Prefill int
	// Sample says that the logits of the last token give the sequence's next one. A sequence with Hold has no next one.
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
	// Preempted sequences gave up their blocks and wait again; encoding ones before others, newest first. Their
	// transfers are over: what writes to their blocks must end before the batch is computed.
	Preempted []SeqID
	// Reserved are the sequences added with Unfinished ranges or a TransferEnd which were admitted, also again after a
	// preemption. One which was preempted in the same step is neither here nor in Preempted, and its ranges and its
	// transfer are as before.
	Reserved []Reservation
	// PassedOver are waiting sequences which Reopen, need an unfinished range and did not fit. One is here when the
	// step finds that out, and not again before one of its ranges is finished or there are more blocks.
	PassedOver []PassedSequence
	// Failed sequences have MaxTokens tokens, cannot grow, and were not removed in time. The scheduler has
	// dropped them.
	Failed []SeqID
}

// Reservation is the admission of a sequence with Unfinished ranges or a TransferEnd.
type Reservation struct {
	ID SeqID
	// Ready is how many of its first tokens are cached or fetched. It needs the ranges which end after
	// them, and the tokens from there to TransferEnd. If there are none it is computed as others are.
	Ready int
}

// PassedSequence is a waiting sequence which was passed over.
type PassedSequence struct {
	ID SeqID
	// Ready is how many of its first tokens are cached, or can be fetched. It needs the ranges which end after them.
	Ready int
}

// SampledToken is the next token of a sequence.
type SampledToken struct {
	ID    SeqID
	Token kv.Token
}

// Stats are a scheduler's figures at one moment. The uint64 fields count from its creation.
type Stats struct {
	Running int // sequences in the batch
	Waiting int // sequences queued, preempted or paused
	Held    int // sequences which keep their blocks until they are removed; neither running nor waiting
	// Encoding sequences, running or waiting, need an unfinished range or a transfer. Active ones are running and need
	// none.
	Encoding, Active int

	UsedBlocks int // held by sequences
	// ReservedBlocks are the used ones which paused sequences hold for tokens which are not computed.
	ReservedBlocks int
	CachedBlocks   int // kept for reuse only
	FreeBlocks     int // empty

	// PrefillTokens are the tokens of sequences, running or waiting, which were known when the sequences
	// were added or preempted and are not computed yet. Tokens which a transfer is to bring do not count until it ends
	// without them.
	PrefillTokens int

	PromptTokens uint64 // in prompts admitted, each prompt once
	CachedTokens uint64 // of those, from the cache or fetched when the prompt was admitted; never imported
	// FetchedTokens were fetched from Config.Remote, also after a preemption.
	FetchedTokens uint64
	// ImportedTokens were imported: of prompts, and of what was generated elsewhere.
	ImportedTokens uint64
	// ComputedTokens are tokens of prompts which steps computed, also for held sequences, and also again after a
	// preemption.
	ComputedTokens uint64
	Preemptions    uint64
	Evictions      uint64 // blocks evicted to make room
	Collisions     uint64 // full blocks not registered because their hash was taken
}

// Scheduler decides what an engine computes and where it keeps K and V. It is not safe for concurrent use.
type Scheduler struct {
	cfg  Config
	pool blockPool

	byID    map[SeqID]*seqState
	running sequenceQueue // in order of arrival, as the others
	paused  sequenceQueue // they hold blocks, and can compute nothing or wait for a place among the running ones
	held    sequenceQueue // they hold blocks until they are removed
	waiting sequenceQueue // they hold no blocks

	preempted int           // waiting sequences which ran before
	arrivals  uint64        // sequences added
	partial   partialCounts // of sequences with unfinished ranges
	budget    int           // tokens left in the Step being planned
	gaveUp    bool          // that Step has preempted a sequence
	short     bool          // that Step has preempted one which waits now and is not encoding
	gate      admissionGate // says when to look at the head of the queue again
	hits      []int32       // scratch of matchPrefix
	// shares is scratch of reclaimableBlocks: how many encoding sequences hold a block.
	shares map[int32]int32
	stats  Stats // the fields which are counted as they change
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
	st.Waiting = s.waiting.len + s.paused.len
	st.Held = s.held.len
	for _, n := range s.partial.encoding {
		st.Encoding += n
	}
	st.Active = s.running.len - s.partial.encoding[inRunning]
	st.UsedBlocks = s.pool.used
	st.ReservedBlocks = s.partial.reserved
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
	q.limit = s.limitOf(q, 0)
	s.byID[q.id] = q
	s.enterQueue(q, inWaiting)
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
	if err := s.cfg.validatePartial(&seq); err != nil {
		return err
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
	s.countPartial(q, -1)
	s.queueOf(q).remove(q)
	if q.queue == inWaiting && q.admitted {
		s.preempted--
	}
}

// enterQueue puts q, which is in none, into a queue, at its place in order of arrival.
func (s *Scheduler) enterQueue(q *seqState, to queueName) {
	q.queue = to
	s.queueOf(q).insert(q)
	if to == inWaiting && q.admitted {
		s.preempted++
	}
	s.countPartial(q, 1)
}

func (s *Scheduler) queueOf(q *seqState) *sequenceQueue {
	switch q.queue {
	case inRunning:
		return &s.running
	case inPaused:
		return &s.paused
	case inHeld:
		return &s.held
	}
	return &s.waiting
}

// releaseBlocks releases q's blocks, last to first, so that blocks which extend others are evicted before
// them.
func (s *Scheduler) releaseBlocks(q *seqState) {
	for i := len(q.blocks) - 1; i >= 0; i-- {
		s.pool.dropHolder(q.blocks[i])
	}
	q.blocks = q.blocks[:0]
	q.registered, q.tip, q.sealed, q.fetched, q.fetchOnly = 0, 0, false, 0, false
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
