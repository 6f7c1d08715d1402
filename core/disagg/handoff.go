package disagg

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// HandoffConfig bounds a Handoff. It has no defaults: the settings have them.
type HandoffConfig struct {
	// MaxAttempts is how many jobs are made of one request.
	MaxAttempts int
	// LocalWait bounds the look-up of the prefix, and then the reservation.
	LocalWait time.Duration
	// QueueWait bounds the wait of a job for a prefill worker. AddressedWait bounds the wait for the worker to which the job
	// is addressed: then it goes to the queue, for the rest of QueueWait.
	QueueWait, AddressedWait time.Duration
	// Silence is how long an admitted prefill worker may show no progress.
	Silence time.Duration
	// Budget bounds the time from the first job to the last block, over all attempts.
	Budget time.Duration
}

// Validate reports every problem of c at once, nil if there is none.
func (c HandoffConfig) Validate() error {
	return errors.Join(
		checkAttempts(c.MaxAttempts), checkWait("a look-up and a reservation", c.LocalWait), checkWait("a job in the queue", c.QueueWait),
		checkWait("a job at the worker to which it is addressed", c.AddressedWait),
		checkWait("the progress of a prefill worker", c.Silence), checkWait("all attempts of a prefill", c.Budget),
	)
}

// maxAttempts bounds what a machine remembers of the workers which failed.
const maxAttempts = 16

func checkAttempts(n int) error {
	if n < 1 || n > maxAttempts {
		return fmt.Errorf("disagg: a prefill has %d attempts: must be between 1 and %d", n, maxAttempts)
	}
	return nil
}

func checkWait(of string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("disagg: the limit of %s is %v: must be positive", of, d)
	}
	return nil
}

// HandoffState is the state of a Handoff. The last three are ends.
type HandoffState uint8

// The states.
const (
	LookingUp  HandoffState = iota // S4: what the worker holds, and the decision, are asked for
	Reserving                      // S5a: blocks are asked for
	Queued                         // S6: a job is in the queue
	Prefilling                     // S7 to S10: a prefill worker was admitted, and a transfer is open
	Decoding                       // S11: the blocks are there
	Local                          // the decode worker prefills
	Aborted                        // the request was cancelled
)

// String returns the name of the state.
func (s HandoffState) String() string {
	return [...]string{"looking up", "reserving", "queued", "prefilling", "decoding", "local", "aborted"}[s]
}

// IsEnd reports whether s is an end.
func (s HandoffState) IsEnd() bool { return s >= Decoding }

// Handoff is the state of one request at its decode worker, from its arrival to the first step of its decode.
//
//	state       event                                          next        effects
//	            StartHandoff                                   looking up  LookUpPrefix
//	looking up  HandlePrefix: local                            local       PrefillLocal
//	looking up  HandlePrefix: remote                           reserving   ReserveBlocks
//	reserving   HandleReserved, and blocks are to be moved     queued      EnqueueJob
//	reserving   HandleReserved, and none are                   local       PrefillLocal
//	queued      HandlePull                                     prefilling  OpenTransfer, AdmitPull
//	queued      HandlePull by a worker which failed before     local       RefusePull, PrefillLocal
//	queued      HandlePrefillFailed                            queued      EnqueueJob (1)
//	queued      HandleQueueFailed                              local       WithdrawJob, PrefillLocal
//	queued      HandleQueueFailed, and it is addressed         queued      WithdrawJob, EnqueueJob (2)
//	prefilling  HandleProgress                                 prefilling
//	prefilling  HandleNotify                                   decoding    StartDecode
//	prefilling  HandlePrefillFailed by the admitted worker     queued      CloseTransfer, EnqueueJob (1)
//	prefilling  HandleTransferFailed                           queued      CloseTransfer, AbortPrefill, EnqueueJob (1)
//	prefilling  Tick: Silence has passed                       queued      CloseTransfer, AbortPrefill, EnqueueJob (1)
//	looking up  Tick: the deadline                             local       PrefillLocal
//	reserving   Tick: the deadline                             local       PrefillLocal
//	queued      Tick: AddressedWait has passed                 queued      WithdrawJob, EnqueueJob (2)
//	queued      Tick: the deadline                             local       WithdrawJob, PrefillLocal
//	prefilling  Tick: Budget has passed                        local       CloseTransfer, AbortPrefill, PrefillLocal
//	reserving   ReclaimBlocks                                  local       FreeBlocks, PrefillLocal
//	queued      ReclaimBlocks                                  local       WithdrawJob, FreeBlocks, PrefillLocal
//	prefilling  ReclaimBlocks                                  local       CloseTransfer, AbortPrefill, FreeBlocks, PrefillLocal
//	live        CancelHandoff                                  aborted     as ReclaimBlocks, without PrefillLocal
//	any         HandlePull otherwise                           the same    RefusePull
//
// (1) After the last attempt, and if the request names its prefill worker: local, and PrefillLocal instead. (2) Of the
// same attempt, for any worker: if the one to which it was addressed pulls it all the same, it is admitted as others are.
// A job whose worker the request names is local instead, after QueueWait. Every other pair changes nothing.
type Handoff struct {
	cfg       HandoffConfig
	state     HandoffState
	ref       AttemptRef
	first     uint32 // attempt
	tokens    int
	blockSize int
	held, end int // blocks of the tokens from held to end move
	reserved  bool
	to        Incarnation // the job is addressed to it; zero if it is to none
	pinned    bool        // no other may get it
	puller    Incarnation
	failed    []Incarnation
	deadline  kv.Mono // of the state
	queueEnd  kv.Mono // of the present attempt's wait for a prefill worker
	budgetEnd kv.Mono // of all attempts; since the first job
	firstJob  kv.Mono
	givenUp   []HandoffReason
	lost      time.Duration
}

// HandoffRequest is what a Handoff knows of its request.
type HandoffRequest struct {
	// First is its first attempt. A handoff uses the numbers from First.Attempt to below First.Attempt+MaxAttempts.
	First AttemptRef
	// Tokens is the length of the prompt with the tokens which earlier attempts of the request generated, at least 1.
	Tokens int
	// BlockSize is that of the decode worker, in tokens.
	BlockSize int
}

// StartHandoff begins the handoff of a request. cfg must be valid.
func StartHandoff(now kv.Mono, cfg HandoffConfig, req HandoffRequest, out []HandoffEffect) (*Handoff, []HandoffEffect) {
	h := &Handoff{
		cfg: cfg, ref: req.First, first: req.First.Attempt, tokens: req.Tokens, blockSize: req.BlockSize,
		end: MovableEnd(req.Tokens, req.BlockSize), deadline: now.Add(cfg.LocalWait),
	}
	return h, append(out, HandoffEffect{Kind: LookUpPrefix, Tokens: h.tokens})
}

// MovableEnd returns the position up to which another worker can compute the tokens of a request: its last block boundary
// before the last token. The decode worker computes the rest.
func MovableEnd(tokens, blockSize int) int { return max(tokens-1, 0) / blockSize * blockSize }

// State returns the state.
func (h *Handoff) State() HandoffState { return h.state }

// Ref returns the present attempt, or the last one. Before the first job it is the one which would be next.
func (h *Handoff) Ref() AttemptRef { return h.ref }

// Failed returns the prefill workers which failed the request. It is valid until the next event.
func (h *Handoff) Failed() []Incarnation { return h.failed }

// GivenUp returns why each attempt which had a job was given up, in their order. It is valid until the next event.
func (h *Handoff) GivenUp() []HandoffReason { return h.givenUp }

// Lost returns the time from the first job to the end of the last attempt which failed, or until a job went to the queue
// because the worker to which it was addressed did not begin it, whichever is later; 0 without both. An attempt has not
// failed which ended because its blocks were reclaimed, or because the request was cancelled.
func (h *Handoff) Lost() time.Duration { return h.lost }

// Deadline returns when Tick is due; ok is false at an end.
func (h *Handoff) Deadline() (at kv.Mono, ok bool) { return h.deadline, !h.state.IsEnd() }

// HandlePrefix reports the decision about what the worker holds.
func (h *Handoff) HandlePrefix(now kv.Mono, d *Decision, out []HandoffEffect) []HandoffEffect {
	switch {
	case h.state != LookingUp:
		return out
	case !d.Remote:
		return h.prefillLocal(Decided, out)
	}
	h.to, h.pinned = d.To, d.Pinned
	h.state, h.reserved, h.deadline = Reserving, true, now.Add(h.cfg.LocalWait)
	return append(out, HandoffEffect{Kind: ReserveBlocks, Tokens: h.tokens})
}

// HandleReserved reports that the blocks of all tokens are reserved, and that the first held tokens are computed in
// them: perhaps more or less than HandlePrefix was told.
func (h *Handoff) HandleReserved(now kv.Mono, held int, out []HandoffEffect) []HandoffEffect {
	if h.state != Reserving {
		return out
	}
	if h.held = held / h.blockSize * h.blockSize; h.held >= h.end {
		return h.prefillLocal(NothingToMove, out)
	}
	h.firstJob, h.budgetEnd = now, now.Add(h.cfg.Budget)
	return h.enqueueJob(now, out)
}

// enqueueJob makes the present attempt wait for a prefill worker.
func (h *Handoff) enqueueJob(now kv.Mono, out []HandoffEffect) []HandoffEffect {
	h.state, h.queueEnd = Queued, min(now.Add(h.cfg.QueueWait), h.budgetEnd)
	if h.deadline = h.queueEnd; h.isAddressed() {
		h.deadline = min(h.deadline, now.Add(h.cfg.AddressedWait))
	}
	return append(out, HandoffEffect{Kind: EnqueueJob, Ref: h.ref, Peer: h.to, Start: h.held, End: h.end, Budget: h.budgetEnd.Sub(now)})
}

// isAddressed reports whether the job in the queue is addressed to a worker, and others may get it too.
func (h *Handoff) isAddressed() bool { return h.to != (Incarnation{}) && !h.pinned }

// openJob gives the job of the present attempt, which was addressed to a worker, to all. The attempt goes on, and its
// wait so far was in vain.
func (h *Handoff) openJob(now kv.Mono, out []HandoffEffect) []HandoffEffect {
	h.lost = now.Sub(h.firstJob)
	h.to, h.deadline = Incarnation{}, h.queueEnd
	return append(out, HandoffEffect{Kind: WithdrawJob, Ref: h.ref},
		HandoffEffect{Kind: EnqueueJob, Ref: h.ref, Start: h.held, End: h.end, Budget: h.budgetEnd.Sub(now)})
}

// HandlePull reports that a prefill worker pulled the job of ref and asks for its prompt. It is answered at once, with
// AdmitPull or RefusePull.
func (h *Handoff) HandlePull(now kv.Mono, ref AttemptRef, by Incarnation, out []HandoffEffect) []HandoffEffect {
	out = h.Tick(now, out) // a pull which comes after the deadline is late
	refuse := func(why HandoffReason) []HandoffEffect {
		return append(out, HandoffEffect{Kind: RefusePull, Ref: ref, Peer: by, Reason: why})
	}
	switch {
	case ref == h.ref && h.state == Prefilling:
		return refuse(Duplicate)
	case ref != h.ref || h.state != Queued:
		return refuse(Stale)
	case slices.Contains(h.failed, by):
		// It is free, and others are not: the prompt does not wait for them.
		h.recordFailure(now, FailedBefore)
		return h.prefillLocal(FailedBefore, refuse(FailedBefore))
	}
	h.state, h.puller = Prefilling, by
	h.renewSilence(now)
	return append(out, HandoffEffect{Kind: OpenTransfer, Ref: ref, Start: h.held, End: h.end},
		HandoffEffect{Kind: AdmitPull, Ref: ref, Peer: by, Budget: h.budgetEnd.Sub(now)})
}

func (h *Handoff) renewSilence(now kv.Mono) {
	h.deadline = min(now.Add(h.cfg.Silence), h.budgetEnd)
}

// HandleProgress reports that the prefill worker of ref said that it goes on, or that blocks have come.
func (h *Handoff) HandleProgress(now kv.Mono, ref AttemptRef) {
	if h.state == Prefilling && ref == h.ref {
		h.renewSilence(now)
	}
}

// HandleNotify reports that the transfer of ref ended well: all blocks are there and verified, and the writer's note
// names ref.
func (h *Handoff) HandleNotify(ref AttemptRef, out []HandoffEffect) []HandoffEffect {
	if h.state != Prefilling || ref != h.ref {
		return out
	}
	h.state, h.reserved = Decoding, false
	return append(out, HandoffEffect{Kind: StartDecode, Ref: ref, Start: h.held, End: h.end})
}

// HandlePrefillFailed reports that a prefill worker gave up ref, and why: PrefillFailed or Incompatible. It need not be
// admitted to give up: it has pulled the job.
func (h *Handoff) HandlePrefillFailed(now kv.Mono, ref AttemptRef, by Incarnation, why HandoffReason, out []HandoffEffect) []HandoffEffect {
	switch {
	case ref != h.ref:
	case h.state == Queued:
		h.failed = append(h.failed, by)
		return h.retryPrefill(now, why, out)
	case h.state == Prefilling && by == h.puller:
		h.puller = Incarnation{} // it need not be told
		h.failed = append(h.failed, by)
		return h.retryPrefill(now, why, h.endAttempt(why, out))
	}
	return out
}

// HandleTransferFailed reports that the transfer of ref could not be opened, or ended without all blocks.
func (h *Handoff) HandleTransferFailed(now kv.Mono, ref AttemptRef, out []HandoffEffect) []HandoffEffect {
	if h.state != Prefilling || ref != h.ref {
		return out
	}
	return h.retryPrefill(now, TransferFailed, h.endAttempt(TransferFailed, out))
}

// HandleQueueFailed reports that the queue did not take the job of ref, or has lost it, or that the worker to which it
// is addressed is not known any more. Another job would fare no better.
func (h *Handoff) HandleQueueFailed(now kv.Mono, ref AttemptRef, out []HandoffEffect) []HandoffEffect {
	switch {
	case h.state != Queued || ref != h.ref:
		return out
	case h.isAddressed() && now < h.queueEnd:
		return h.openJob(now, out)
	}
	h.recordFailure(now, QueueLost)
	return h.prefillLocal(QueueLost, h.endAttempt(QueueLost, out))
}

// recordFailure records that the present attempt has failed.
func (h *Handoff) recordFailure(now kv.Mono, why HandoffReason) {
	h.givenUp = append(h.givenUp, why)
	h.lost = now.Sub(h.firstJob)
}

// endAttempt ends what the present attempt has in progress, and tells the other side.
func (h *Handoff) endAttempt(why HandoffReason, out []HandoffEffect) []HandoffEffect {
	switch h.state {
	case Queued:
		out = append(out, HandoffEffect{Kind: WithdrawJob, Ref: h.ref})
	case Prefilling:
		out = append(out, HandoffEffect{Kind: CloseTransfer, Ref: h.ref})
		if h.puller != (Incarnation{}) {
			out = append(out, HandoffEffect{Kind: AbortPrefill, Ref: h.ref, Peer: h.puller, Reason: why})
			h.failed = append(h.failed, h.puller)
			h.puller = Incarnation{}
		}
	}
	return out
}

// retryPrefill begins the next attempt after one which has ended, or prefills locally.
func (h *Handoff) retryPrefill(now kv.Mono, why HandoffReason, out []HandoffEffect) []HandoffEffect {
	h.recordFailure(now, why)
	switch {
	case now >= h.budgetEnd:
		return h.prefillLocal(BudgetSpent, out)
	case h.pinned || h.ref.Attempt-h.first+1 >= uint32(h.cfg.MaxAttempts):
		return h.prefillLocal(why, out)
	}
	h.ref.Attempt++
	h.to = Incarnation{}
	return h.enqueueJob(now, out)
}

// prefillLocal ends the handoff: the request keeps what is reserved for it.
func (h *Handoff) prefillLocal(why HandoffReason, out []HandoffEffect) []HandoffEffect {
	out = append(out, HandoffEffect{Kind: PrefillLocal, Start: h.held, Reserved: h.reserved, Reason: why})
	h.state, h.reserved = Local, false
	return out
}

// ReclaimBlocks reports that the engine needs the reserved blocks for an older request, or cannot reserve any for this
// one. They are given back at once, and the request begins anew, locally.
func (h *Handoff) ReclaimBlocks(out []HandoffEffect) []HandoffEffect {
	if h.state.IsEnd() || !h.reserved {
		return out
	}
	out = h.freeBlocks(BlocksReclaimed, out)
	h.held = 0
	return h.prefillLocal(BlocksReclaimed, out)
}

// freeBlocks ends the attempt, if there is one, and gives the reservation back.
func (h *Handoff) freeBlocks(why HandoffReason, out []HandoffEffect) []HandoffEffect {
	if h.state == Queued || h.state == Prefilling {
		h.givenUp = append(h.givenUp, why)
	}
	if out = h.endAttempt(why, out); h.reserved {
		h.reserved = false
		out = append(out, HandoffEffect{Kind: FreeBlocks})
	}
	return out
}

// CancelHandoff ends the handoff of a request which was cancelled, or goes elsewhere. After an end it does nothing: the
// blocks are the request's.
func (h *Handoff) CancelHandoff(out []HandoffEffect) []HandoffEffect {
	if h.state.IsEnd() {
		return out
	}
	out = h.freeBlocks(Cancelled, out)
	h.state = Aborted
	return out
}

// Tick is the event of time: it ends a state whose deadline has passed.
func (h *Handoff) Tick(now kv.Mono, out []HandoffEffect) []HandoffEffect {
	if h.state.IsEnd() || now < h.deadline {
		return out
	}
	switch h.state {
	case LookingUp:
		return h.prefillLocal(LookUpSlow, out)
	case Reserving:
		return h.prefillLocal(NoMemory, out)
	case Queued:
		if now < h.queueEnd {
			return h.openJob(now, out)
		}
		why := QueueSlow
		if now >= h.budgetEnd {
			why = BudgetSpent
		}
		h.recordFailure(now, why)
		return h.prefillLocal(why, h.endAttempt(why, out))
	}
	why := Silent
	if now >= h.budgetEnd {
		why = BudgetSpent
	}
	return h.retryPrefill(now, why, h.endAttempt(why, out))
}
