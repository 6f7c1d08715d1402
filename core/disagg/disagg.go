// Package disagg moves the prefill of a request to another worker than its decode, and back when that fails. It has
// the decision (see [Decide]), what two workers must have in common to exchange KV blocks (see [CheckExchange]), and
// three machines, each for one request:
//
//   - [Handoff] belongs to a decode worker, which gets the request first. It reserves blocks, puts a job into the
//     queue of the prefill workers, and decodes once the blocks are there.
//   - [PrefillJob] belongs to the prefill worker which pulled that job. It computes the prompt and writes the blocks
//     into the memory of the decode worker.
//   - [Legs] belongs to a router before engines which move blocks themselves: it calls the prefill engine first and
//     gives its answer to the decode engine (vLLM, TensorRT-LLM), or calls both at once (SGLang).
//
// The machines compute, copy and send nothing. Their methods are events, and append to out what the shell must do, in
// order: see [HandoffEffect]. Each live state has a deadline. Deadline returns it, and Tick is its event.
//
// # What always holds
//
// A failed prefill never fails a request: another prefill worker computes the prompt, and after MaxAttempts, or Budget,
// the decode worker does.
//
// An [AttemptRef] is used once. At most one prefill worker is admitted to an attempt, and one decode leg gets its
// result. What comes late, of an earlier attempt or of an earlier life of the process, changes nothing; a late pull is
// refused, and a late handoff released.
//
// A side which gives up says so. The other side does not depend on it: its own deadline ends its wait.
//
// Blocks which were reserved are given to the sequence of the request, or freed, exactly once. Neither waits for another
// worker: CloseTransfer is local, and after it nothing writes to the blocks, whatever the writer does. The blocks of a
// transfer are read after HandleNotify of its own attempt only. So nothing of a closed transfer is ever read: what comes
// next writes to all of its blocks again.
//
// # Which blocks move
//
// The decode worker computes the last tokens of every prompt itself, at least one and at most a block of them: it needs
// the logits of the last token, and blocks move whole. So of n tokens, with blocks of b, those from the first which it
// does not hold to the position (n-1)/b*b move. The prefill worker computes all of them which its own cache does not
// have, also those which the decode worker holds.
//
// A request which resumes with generated tokens is one whose tokens are prompt and generated tokens. It begins as others
// do, with LookUpPrefix: a worker which still holds its blocks moves none.
//
// A machine has one owner: its methods must not run concurrently. It is deterministic: time is an argument, which never
// decreases, and the same calls give the same effects.
package disagg

import (
	"fmt"
	"strings"
	"time"

	"penstock/core/kv"
)

// AttemptRef names one attempt to prefill a request elsewhere. A worker or router never gives a number twice in one
// life: not to two requests, and not when a request comes back.
type AttemptRef struct {
	// Epoch is that of the decode worker, or of the router for [Legs].
	Epoch   uint64
	Attempt uint32
}

// String returns the reference as epoch and attempt.
func (r AttemptRef) String() string { return fmt.Sprintf("%d.%d", r.Epoch, r.Attempt) }

// Incarnation is one life of a worker's rank. The zero value is none.
type Incarnation struct {
	Worker kv.Worker
	Epoch  uint64
}

// String returns the incarnation as worker, rank and epoch.
func (i Incarnation) String() string {
	return fmt.Sprintf("%d:%d/%d", i.Worker.ID, i.Worker.Rank, i.Epoch)
}

// HandoffEffectKind says what a HandoffEffect is.
type HandoffEffectKind uint8

// The kinds, with the fields which they use.
const (
	// LookUpPrefix asks how much of Tokens tokens the decode worker holds, and for the decision. HandlePrefix follows.
	// It belongs to Handoff and Legs.
	LookUpPrefix HandoffEffectKind = iota + 1

	// The effects of Handoff.

	// ReserveBlocks asks the engine for the blocks of Tokens tokens. HandleReserved follows, or ReclaimBlocks. One
	// of StartDecode, PrefillLocal and FreeBlocks ends the reservation, whether it was granted or not.
	ReserveBlocks
	// EnqueueJob gives a job for Ref to Peer, or puts it into the queue of the prefill workers if there is no Peer: the
	// blocks of the tokens Start to End, to be there within Budget. A shell without a queue calls a worker which is none
	// of Handoff.Failed. HandleQueueFailed says that the queue did not take it, or that Peer is not known.
	EnqueueJob
	// WithdrawJob says that nothing waits for the job of Ref, which no prefill worker was admitted to. A queue which
	// cannot remove it leaves it: a worker which pulls it is refused. A job which was addressed to a worker may be
	// followed by an EnqueueJob of the same Ref.
	WithdrawJob
	// OpenTransfer opens a transfer into the blocks of the tokens Start to End. Its end is CloseTransfer, or the
	// success which HandleNotify reports. HandleTransferFailed says that it failed, or could not be opened.
	OpenTransfer
	// AdmitPull answers Peer's pull of Ref with the prompt, the transfer's descriptor and Budget.
	AdmitPull
	// RefusePull answers Peer's pull of Ref: it must drop the job.
	RefusePull
	// CloseTransfer ends the transfer of Ref. When it is done nothing writes to its blocks any more. It is local, and
	// waits for no writer.
	CloseTransfer
	// AbortPrefill tells Peer that its work on Ref is not wanted any more. It belongs to Handoff and Legs.
	AbortPrefill
	// StartDecode gives the reserved blocks to the request: those before End are computed.
	StartDecode
	// PrefillLocal has the decode worker compute the prompt. If Reserved, the request keeps its reservation, in which
	// the blocks before Start are computed and no other; else it has none, and is admitted as others are.
	PrefillLocal
	// FreeBlocks frees the reserved blocks, and withdraws a reservation which was not granted.
	FreeBlocks

	// The effects of PrefillJob.

	// FetchPrompt pulls the prompt of Ref from the decode worker. HandlePrompt, HandleRefused or HandleFailed follows.
	FetchPrompt
	// RunPrefill computes the prompt. HandleComputed follows, or HandleFailed.
	RunPrefill
	// WriteBlocks writes the blocks of the tokens Start to End to the transfer, and then a note which names Ref: the
	// notification. HandleWritten follows once the decode worker has them, or HandleFailed.
	WriteBlocks
	// KeepAlive tells the queue, and the decode worker, that the work on Ref goes on.
	KeepAlive
	// TellDecode tells the decode worker that this worker gave up Ref.
	TellDecode
	// AckJob removes the job from the queue, and ReturnJob leaves it there for another worker. One of both ends each
	// job. A worker which stops returns it at once. A worker which cannot do it would get it again, so it lets the lease
	// pass.
	AckJob
	ReturnJob
	// ReleasePrompt ends what runs for the job, and lets go of its blocks. It follows once on each RunPrefill.
	ReleasePrompt

	// The effects of Legs.

	// CallPrefill calls the prefill leg of Ref, at a worker which is none of Legs.Failed. HandlePrefilled or
	// HandlePrefillFailed follows.
	CallPrefill
	// CallDecode calls the decode leg of Ref: with what Peer's prefill leg gave, or, with both legs at once, with the
	// same room. HandleFirstToken or HandleDecodeFailed follows. It must not be sent after AbortDecode, nor if
	// Peer lives in another epoch.
	CallDecode
	// CallWhole calls prefill and decode as one: the request goes on as one which is not divided.
	CallWhole
	// AbortDecode ends the decode leg of Ref, which has given no token.
	AbortDecode
	// ReleaseHandoff tells Peer that what its prefill leg of Ref holds will not be fetched. For vLLM that is a decode
	// leg whose answer is dropped: without it Peer holds the blocks until the end of its lease.
	ReleaseHandoff
	// DeliverPrefill says that the answer of the prefill leg of Ref is the whole answer.
	DeliverPrefill
	// DrainPrefill lets the prefill leg of Ref end by itself: the answer is the decode leg's.
	DrainPrefill

	effectKinds = iota + 1
)

// effectNames has the words of each kind.
var effectNames = [effectKinds]string{
	"nothing", "look up the prefix", "reserve blocks", "enqueue job", "withdraw job", "open transfer", "admit", "refuse",
	"close transfer", "abort prefill", "decode", "prefill locally", "free blocks", "fetch prompt", "run prefill",
	"write blocks", "keep alive", "tell decode: gave up", "ack job", "return job", "release prompt", "call prefill",
	"call decode", "call whole", "abort decode", "release handoff", "deliver the prefill's answer", "drain prefill",
}

// HandoffEffect is one thing which the shell of a machine must do.
type HandoffEffect struct {
	Kind HandoffEffectKind
	Ref  AttemptRef
	Peer Incarnation
	// Tokens is the length of the request in tokens.
	Tokens int
	// Start and End are positions of tokens, half open.
	Start, End int
	Budget     time.Duration
	Reserved   bool
	// Reason says why. AbortPrefill, RefusePull, PrefillLocal, TellDecode, ReturnJob, CallWhole, AbortDecode and
	// ReleaseHandoff have one.
	Reason HandoffReason
}

// String returns the effect in words, with the fields which its kind uses.
func (e HandoffEffect) String() string {
	kind := e.Kind
	if int(kind) >= len(effectNames) {
		kind = 0
	}
	var text strings.Builder
	text.WriteString(effectNames[kind])
	if e.Ref != (AttemptRef{}) {
		fmt.Fprintf(&text, " %v", e.Ref)
	}
	if e.Peer != (Incarnation{}) {
		fmt.Fprintf(&text, " of %v", e.Peer)
	}
	switch kind {
	case LookUpPrefix, ReserveBlocks:
		fmt.Fprintf(&text, " of %d tokens", e.Tokens)
	case EnqueueJob, OpenTransfer, WriteBlocks, StartDecode:
		fmt.Fprintf(&text, ", tokens %d to %d", e.Start, e.End)
	case PrefillLocal:
		fmt.Fprintf(&text, " from %d", e.Start)
		if e.Reserved {
			text.WriteString(", reserved")
		}
	}
	if e.Budget > 0 {
		fmt.Fprintf(&text, ", within %v", e.Budget)
	}
	if e.Reason != NoReason {
		fmt.Fprintf(&text, ": %v", e.Reason)
	}
	return text.String()
}

// HandoffReason says why an attempt, or the whole handoff, was given up.
type HandoffReason uint8

// The reasons.
const (
	NoReason        HandoffReason = iota
	Decided                       // the decision was for local prefill
	NothingToMove                 // the decode worker holds every block which could be moved
	LookUpSlow                    // the look-up of the prefix took too long
	NoMemory                      // no blocks could be reserved in time
	BlocksReclaimed               // the engine took the blocks back
	QueueLost                     // the queue did not take the job
	QueueSlow                     // no prefill worker pulled the job in time
	Silent                        // the prefill worker showed no progress for too long
	PrefillFailed                 // the prefill worker gave up
	TransferFailed                // the blocks did not arrive
	BudgetSpent                   // all attempts together took too long
	Stale                         // nothing waits for the attempt any more
	Duplicate                     // another pull of the attempt was admitted
	FailedBefore                  // the worker failed in an earlier attempt
	Cancelled                     // the request was cancelled
	Incompatible                  // the two workers cannot exchange blocks
	UnknownPeer                   // the metadata of the decode worker are not known
	Unreachable                   // the decode worker does not answer
	NoWorker                      // there is no prefill worker
	NoHandoff                     // the prefill leg gave nothing for the decode leg
	DecodeFailed                  // the decode leg failed before its first token
	FirstTokenSlow                // the decode leg gave no token in time, or the lease of its blocks ended
	Stopped                       // the prefill worker stops

	handoffReasons = iota
)

// String returns the reason in words.
func (r HandoffReason) String() string {
	if int(r) >= handoffReasons {
		return "unknown reason"
	}
	return [handoffReasons]string{
		"no reason", "decided", "nothing to move", "look-up too slow", "no memory", "blocks reclaimed", "queue lost",
		"queue too slow", "silent", "prefill failed", "transfer failed", "budget spent", "stale", "duplicate",
		"failed before", "cancelled", "incompatible", "unknown decode worker", "unreachable", "no prefill worker",
		"no handoff", "decode failed", "first token too slow", "stopped",
	}[r]
}
