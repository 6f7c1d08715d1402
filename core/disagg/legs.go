package disagg

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/kv"
)

// LegOrder says how engines which move blocks themselves are called.
type LegOrder uint8

// The orders.
const (
	// PrefillFirst calls the decode leg with what the prefill leg answered: vLLM's kv_transfer_params, TensorRT-LLM's
	// disaggregated_params.
	PrefillFirst LegOrder = iota
	// BothAtOnce calls the decode leg as soon as the prefill leg has a worker. Both name the same room, where they
	// meet: SGLang.
	BothAtOnce

	legOrders = iota
)

// LegsConfig bounds Legs. It has no defaults: the settings have them.
type LegsConfig struct {
	Order LegOrder
	// MaxAttempts is how many prefill legs are called for one request.
	MaxAttempts int
	// LocalWait bounds the look-up of the prefix.
	LocalWait time.Duration
	// PrefillWait bounds a prefill leg, with the choice of its worker.
	PrefillWait time.Duration
	// FirstTokenWait bounds the time from the end of the prefill leg to the first token of the decode leg.
	FirstTokenWait time.Duration
	// Budget bounds the time from the first prefill leg to the end of the last one.
	Budget time.Duration
}

// Validate reports every problem of c at once, nil if there is none.
func (c LegsConfig) Validate() error {
	var order error
	if c.Order >= legOrders {
		order = fmt.Errorf("disagg: order %d of the legs is unknown", c.Order)
	}
	return errors.Join(
		order, checkAttempts(c.MaxAttempts), checkWait("a look-up", c.LocalWait), checkWait("a prefill leg", c.PrefillWait),
		checkWait("the first token of a decode leg", c.FirstTokenWait), checkWait("all prefill legs", c.Budget),
	)
}

// LegsState is the state of Legs. The last four are ends.
type LegsState uint8

// The states.
const (
	LegsLookingUp LegsState = iota // the decision is asked for
	PrefillLeg                     // the prefill leg runs, or its worker is chosen
	BothLegs                       // both legs run
	DecodeLeg                      // the prefill leg has ended well, and the decode leg has given no token
	Streaming                      // the decode leg has given a token
	Whole                          // the request is not divided
	Delivered                      // the answer of the prefill leg is the whole answer
	LegsAborted                    // the request was cancelled
)

// String returns the name of the state.
func (s LegsState) String() string {
	return [...]string{"looking up", "prefill leg", "both legs", "decode leg", "streaming", "whole", "delivered", "aborted"}[s]
}

// IsEnd reports whether s is an end.
func (s LegsState) IsEnd() bool { return s >= Streaming }

// Legs is the state of one request at a router before engines which move blocks themselves, up to its first token.
//
//	state       event                                      next         effects
//	            StartLegs                                  looking up   LookUpPrefix
//	looking up  HandlePrefix: remote                       prefill leg  CallPrefill
//	looking up  HandlePrefix: local, or the deadline       whole        CallWhole
//	prefill     HandlePrefillPlaced, PrefillFirst          prefill leg
//	prefill     HandlePrefillPlaced, BothAtOnce            both legs    CallDecode
//	prefill     HandleNoPrefillWorker                      whole        CallWhole
//	prefill     HandlePrefilled: GaveHandoff               decode leg   CallDecode
//	prefill     HandlePrefilled: GaveNothing               whole        CallWhole
//	prefill     HandlePrefilled: GaveAnswer                delivered    DeliverPrefill
//	prefill     HandlePrefillFailed                        prefill leg  CallPrefill (1)
//	prefill     Tick: the deadline                         prefill leg  AbortPrefill, CallPrefill (1)
//	both        HandlePrefilled                            decode leg
//	both        HandleFirstToken                           streaming    DrainPrefill
//	both        HandlePrefillFailed                        prefill leg  AbortDecode, CallPrefill (1)
//	both        HandleDecodeFailed                         prefill leg  AbortPrefill, CallPrefill (1)
//	both        Tick: the deadline                         prefill leg  AbortPrefill, AbortDecode, CallPrefill (1)
//	decode      HandleFirstToken                           streaming
//	decode      HandlePrefillFailed: its worker is lost    prefill leg  AbortDecode, CallPrefill (1)
//	decode      HandleDecodeFailed                         prefill leg  ReleaseHandoff (2), CallPrefill (1)
//	decode      Tick: the deadline                         prefill leg  AbortDecode, ReleaseHandoff (2), CallPrefill (1)
//	live        CancelLegs                                 aborted      as Tick, without CallPrefill
//	any         HandlePrefilled of another attempt         the same     ReleaseHandoff, if it GaveHandoff
//
// (1) After the last attempt, or Budget: whole, and CallWhole instead. (2) If the prefill leg gave a handoff, which is
// never given to another decode leg. Every other pair changes nothing.
//
// A decode leg which fails after its first token is a failure of the request's attempt: the request migrates, and begins
// anew there.
type Legs struct {
	cfg       LegsConfig
	state     LegsState
	ref       AttemptRef
	first     uint32 // attempt
	prefiller Incarnation
	handoff   bool // the prefill leg gave one, and its worker keeps the blocks
	failed    []Incarnation
	deadline  kv.Mono // of the state
	budgetEnd kv.Mono
}

// StartLegs begins a request. tokens counts its prompt and what earlier attempts generated. first is its first attempt:
// the numbers up to below first.Attempt+MaxAttempts are its own. cfg must be valid.
func StartLegs(now kv.Mono, cfg LegsConfig, first AttemptRef, tokens int, out []HandoffEffect) (*Legs, []HandoffEffect) {
	l := &Legs{cfg: cfg, ref: first, first: first.Attempt, deadline: now.Add(cfg.LocalWait)}
	return l, append(out, HandoffEffect{Kind: LookUpPrefix, Tokens: tokens})
}

// State returns the state.
func (l *Legs) State() LegsState { return l.state }

// Ref returns the present attempt, or the last one.
func (l *Legs) Ref() AttemptRef { return l.ref }

// Failed returns the prefill workers which are not to be called again. It is valid until the next event.
func (l *Legs) Failed() []Incarnation { return l.failed }

// Deadline returns when Tick is due; ok is false at an end.
func (l *Legs) Deadline() (at kv.Mono, ok bool) { return l.deadline, !l.state.IsEnd() }

// HandlePrefix reports the decision about what the likely decode worker holds.
func (l *Legs) HandlePrefix(now kv.Mono, d *Decision, out []HandoffEffect) []HandoffEffect {
	switch {
	case l.state != LegsLookingUp:
		return out
	case !d.Remote:
		return l.callWhole(Decided, out)
	}
	l.budgetEnd = now.Add(l.cfg.Budget)
	return l.callPrefill(now, out)
}

// callPrefill begins the present attempt.
func (l *Legs) callPrefill(now kv.Mono, out []HandoffEffect) []HandoffEffect {
	l.state, l.prefiller = PrefillLeg, Incarnation{}
	l.deadline = min(now.Add(l.cfg.PrefillWait), l.budgetEnd)
	return append(out, HandoffEffect{Kind: CallPrefill, Ref: l.ref})
}

func (l *Legs) callWhole(why HandoffReason, out []HandoffEffect) []HandoffEffect {
	l.state = Whole
	return append(out, HandoffEffect{Kind: CallWhole, Reason: why})
}

// HandlePrefillPlaced reports that the prefill leg of ref was sent to a worker. within bounds the leg by what is known of
// that worker; 0 is no such bound.
func (l *Legs) HandlePrefillPlaced(now kv.Mono, ref AttemptRef, by Incarnation, within time.Duration, out []HandoffEffect) []HandoffEffect {
	if l.state != PrefillLeg || ref != l.ref {
		return out
	}
	if within > 0 {
		l.deadline = min(l.deadline, now.Add(within))
	}
	if l.prefiller = by; l.cfg.Order == PrefillFirst {
		return out
	}
	l.state = BothLegs
	return append(out, HandoffEffect{Kind: CallDecode, Ref: ref, Peer: by})
}

// HandleNoPrefillWorker reports that no worker can take the prefill leg of ref.
func (l *Legs) HandleNoPrefillWorker(ref AttemptRef, out []HandoffEffect) []HandoffEffect {
	if l.state != PrefillLeg || ref != l.ref {
		return out
	}
	return l.callWhole(NoWorker, out)
}

// LegResult is what a prefill leg which ended well has given.
type LegResult uint8

// The results.
const (
	// GaveNothing is an answer without a handoff. It is what engines give which meet in a room.
	GaveNothing LegResult = iota
	// GaveHandoff is a handoff for one decode leg.
	GaveHandoff
	// GaveAnswer is the whole answer: its first token ended it, so that vLLM gives no handoff.
	GaveAnswer
)

// HandlePrefilled reports that the prefill leg of ref, at the worker by, ended well. lease is how long the worker keeps
// the blocks; 0 if that is unknown.
func (l *Legs) HandlePrefilled(now kv.Mono, ref AttemptRef, by Incarnation, gave LegResult, lease time.Duration, out []HandoffEffect) []HandoffEffect {
	current := ref == l.ref
	switch {
	case current && l.state == PrefillLeg && gave == GaveHandoff && l.cfg.Order == PrefillFirst:
		l.prefiller, l.handoff = by, true
		out = append(out, HandoffEffect{Kind: CallDecode, Ref: ref, Peer: by})
	case gave == GaveHandoff:
		return append(out, HandoffEffect{Kind: ReleaseHandoff, Ref: ref, Peer: by, Reason: Stale})
	case current && l.state == PrefillLeg && gave == GaveAnswer:
		l.state = Delivered
		return append(out, HandoffEffect{Kind: DeliverPrefill, Ref: ref})
	case current && l.state == PrefillLeg:
		return l.callWhole(NoHandoff, out)
	case !current || l.state != BothLegs:
		return out
	}
	if l.state, l.deadline = DecodeLeg, now.Add(l.cfg.FirstTokenWait); lease > 0 {
		l.deadline = min(l.deadline, now.Add(lease))
	}
	return out
}

// HandlePrefillFailed reports that the prefill leg of ref failed, or that its worker was lost or has another epoch than
// when it was called. by is the zero Incarnation if the leg was not placed.
func (l *Legs) HandlePrefillFailed(now kv.Mono, ref AttemptRef, by Incarnation, out []HandoffEffect) []HandoffEffect {
	if ref != l.ref || l.state == LegsLookingUp || l.state.IsEnd() {
		return out
	}
	if (by != Incarnation{}) {
		l.failed = append(l.failed, by)
	}
	l.handoff = false // its blocks are lost
	return l.retryLegs(now, PrefillFailed, l.endLegs(PrefillFailed, prefillSide, out))
}

// HandleFirstToken reports the first token of the decode leg of ref.
func (l *Legs) HandleFirstToken(ref AttemptRef, out []HandoffEffect) []HandoffEffect {
	switch {
	case ref != l.ref || l.state != BothLegs && l.state != DecodeLeg:
		return out
	case l.state == BothLegs:
		out = append(out, HandoffEffect{Kind: DrainPrefill, Ref: ref})
	}
	l.state, l.handoff = Streaming, false
	return out
}

// HandleDecodeFailed reports that the decode leg of ref failed before its first token.
func (l *Legs) HandleDecodeFailed(now kv.Mono, ref AttemptRef, out []HandoffEffect) []HandoffEffect {
	if ref != l.ref || l.state != BothLegs && l.state != DecodeLeg {
		return out
	}
	return l.retryLegs(now, DecodeFailed, l.endLegs(DecodeFailed, decodeSide, out))
}

// legSide is a side which knows already that an attempt is over.
type legSide uint8

const (
	noSide legSide = iota
	prefillSide
	decodeSide
)

// endLegs ends the legs which run, and tells the sides which do not know.
func (l *Legs) endLegs(why HandoffReason, knows legSide, out []HandoffEffect) []HandoffEffect {
	if (l.state == PrefillLeg || l.state == BothLegs) && knows != prefillSide {
		out = append(out, HandoffEffect{Kind: AbortPrefill, Ref: l.ref, Peer: l.prefiller, Reason: why})
	}
	if (l.state == BothLegs || l.state == DecodeLeg) && knows != decodeSide {
		out = append(out, HandoffEffect{Kind: AbortDecode, Ref: l.ref, Reason: why})
	}
	if l.handoff {
		l.handoff = false
		out = append(out, HandoffEffect{Kind: ReleaseHandoff, Ref: l.ref, Peer: l.prefiller, Reason: why})
	}
	return out
}

// retryLegs begins the next attempt after one which has ended, or does not divide the request.
func (l *Legs) retryLegs(now kv.Mono, why HandoffReason, out []HandoffEffect) []HandoffEffect {
	switch {
	case now >= l.budgetEnd:
		return l.callWhole(BudgetSpent, out)
	case l.ref.Attempt-l.first+1 >= uint32(l.cfg.MaxAttempts):
		return l.callWhole(why, out)
	}
	l.ref.Attempt++
	return l.callPrefill(now, out)
}

// CancelLegs ends the legs of a request which was cancelled.
func (l *Legs) CancelLegs(out []HandoffEffect) []HandoffEffect {
	if l.state.IsEnd() {
		return out
	}
	out = l.endLegs(Cancelled, noSide, out)
	l.state = LegsAborted
	return out
}

// Tick is the event of time: it ends a state whose deadline has passed.
func (l *Legs) Tick(now kv.Mono, out []HandoffEffect) []HandoffEffect {
	switch {
	case l.state.IsEnd() || now < l.deadline:
		return out
	case l.state == LegsLookingUp:
		return l.callWhole(LookUpSlow, out)
	}
	why := Silent
	if l.state == DecodeLeg {
		why = FirstTokenSlow
	}
	if (l.prefiller != Incarnation{}) {
		l.failed = append(l.failed, l.prefiller)
	}
	return l.retryLegs(now, why, l.endLegs(why, noSide, out))
}
