package disagg

import (
	"errors"
	"time"

	"penstock/core/kv"
	"penstock/core/rates"
)

// SplitRates learns, at one decode worker, the times by which ByCost compares: of prefills there and at prefill
// workers, of transfers, and of attempts which fail. Prefill workers are one: which of them gets a job is not known when
// it is decided. Until times are known the priors of core/rates hold, and transfers are believed to take what they take
// at 1 GB/s.
//
// It is not safe for concurrent use, and deterministic: time is an argument, which never decreases.
type SplitRates struct {
	learner       *rates.Learner
	local, remote *rates.WorkerRates
	transfers     [distances]transferRate
	// lost is a decayed mean of the time which failed attempts took from a handoff, in ms, and failed a decayed share of
	// handoffs after which the decode worker computed the prompt. Since the last failure one prompt at a time is sent away
	// in spite of both, from retryAt on.
	lost, failed float64
	retryAt      kv.Mono
	named        namedFailures
	retryWait    time.Duration // a retry whose end is not reported blocks others so long
}

// transferRate is what is known of transfers from one distance.
type transferRate struct {
	believed TransferTime // before anything is learned
	// took and expected are decayed sums of transfers, in ms: what they took, and what they were believed to take.
	took, expected float64
}

// What is believed of transfers before they are known: a fixed part in ms, and bytes in a ms. Both are scaled alike by
// what is learned; transferForget is the weight of earlier transfers relative to the next one, and the prior has that
// of priorTokens.
const (
	transferFixedMs = 1.0
	transferBytesMs = 1e6
	nearSpeed       = 4 // times as fast, of a transfer on the same host
	transferForget  = 0.9
	priorTokens     = 1024
)

// NewSplitRates returns rates which have learned nothing, for blocks with so many bytes a token. Handoffs have the bounds
// of handoffs.
func NewSplitRates(cfg rates.Config, handoffs HandoffConfig, tokenBytes int) (*SplitRates, error) {
	l, err := rates.New(cfg)
	if err := errors.Join(err, handoffs.Validate()); err != nil {
		return nil, err
	}
	r := &SplitRates{learner: l, retryWait: max(maxPause, handoffs.LocalWait+handoffs.Budget)}
	r.named.retryAt = make(map[Incarnation]kv.Mono)
	r.local, r.remote = l.WorkerOf(kv.Worker{ID: 1}), l.WorkerOf(kv.Worker{ID: 2})
	far := TransferTime{transferFixedMs, float64(tokenBytes) / transferBytesMs}
	r.transfers[OtherHost].believed = far
	r.transfers[SameHost].believed = TransferTime{far.FixedMs / nearSpeed, far.TokenMs / nearSpeed}
	for i := range r.transfers {
		t := &r.transfers[i]
		t.took = t.believed.transferMs(priorTokens)
		t.expected = t.took
	}
	return r, nil
}

// RecordLocal records that the decode worker computed so many tokens of a prompt in a time, beside no earlier prompt.
func (r *SplitRates) RecordLocal(now kv.Mono, tokens int, took time.Duration) {
	r.local.RecordPrefill(now, tokens, took)
}

// RecordRemote records that a prefill worker computed so many tokens of a prompt in a time.
func (r *SplitRates) RecordRemote(now kv.Mono, tokens int, took time.Duration) {
	r.remote.RecordPrefill(now, tokens, took)
}

// maxTime bounds what one transfer, or one handoff, can say.
const maxTime = time.Hour

// RecordTransfer records that the blocks of so many tokens moved in a time.
func (r *SplitRates) RecordTransfer(from Distance, tokens int, took time.Duration) {
	ms := float64(min(max(took, time.Microsecond), maxTime)) / float64(time.Millisecond)
	t := &r.transfers[from]
	t.took = float64(transferForget*t.took) + ms
	t.expected = float64(transferForget*t.expected) + t.believed.transferMs(max(tokens, 1))
}

// What is learned of failed attempts. lossShare is the weight of a handoff in the means. After a
// failure remote prefill is tried again when retryPauses times the lost time have passed, and at most maxPause: so
// while all attempts fail, one prompt loses that part of the time. A retry whose end is not reported blocks others as long
// as its handoff may last, and at least maxPause.
const (
	lossShare   = 0.1
	retryPauses = 16
	maxPause    = 2 * time.Minute
)

// RecordHandoff records that a handoff of which d decided has ended, and its [Handoff.Lost]: the time which its failed
// attempts took, 0 if none failed. One whose blocks did not arrive, and of which no attempt failed, says nothing of
// prefill workers. One which was cancelled does not say where its prompt would have been computed.
// One whose worker the request named says nothing of the worker which another one would get: it says whether the next
// requests which name that worker wait for it.
func (r *SplitRates) RecordHandoff(now kv.Mono, d *Decision, end HandoffState, lost time.Duration) {
	lost = min(max(lost, 0), maxTime)
	if d.Pinned {
		r.named.recordEnd(now, d.To, end, lost)
		return
	}
	if end == Decoding || lost > 0 {
		r.lost += float64(lossShare * (float64(lost)/float64(time.Millisecond) - r.lost))
	}
	switch {
	case end == Decoding:
		r.failed -= float64(lossShare * r.failed)
	case end == Local && lost > 0:
		r.failed += float64(lossShare * (1 - r.failed))
	}
	next := now.Add(min(retryPauses*lost, maxPause))
	if d.Reason == RemoteRetry {
		r.retryAt = next
	} else if lost > 0 {
		r.retryAt = max(r.retryAt, next)
	}
}

// Decide decides as [DecideAmong] does, with what is learned. It sets the times of transfers in among, and what is known
// of failures in in: if the request names its prefill worker, of such requests alone. RecordHandoff follows each decision for remote
// prefill.
func (r *SplitRates) Decide(now kv.Mono, c *SplitConfig, in *SplitInputs, among *Candidates) Decision {
	in.FailureMs, in.FailureShare, in.RetryDue, in.NamedFailed = 0, 0, false, false
	if among.Pinned {
		in.NamedFailed = len(among.Workers) > 0 && r.named.holdsBack(now, among.Workers[0].Worker)
	} else {
		in.FailureMs, in.FailureShare, in.RetryDue = r.lost, r.failed, now >= r.retryAt
	}
	for i := range r.transfers {
		t := &r.transfers[i]
		scale := t.took / t.expected
		among.Transfer[i] = TransferTime{float64(scale * t.believed.FixedMs), float64(scale * t.believed.TokenMs)}
	}
	d := DecideAmong(c, in, among, r.local, r.remote)
	switch {
	case d.Reason == RemoteRetry:
		r.retryAt = now.Add(r.retryWait)
	case d.Pinned:
		r.named.startRetry(now, d.To, r.retryWait)
	}
	return d
}
