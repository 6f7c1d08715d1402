package disagg

import (
	"time"

	"penstock/core/kv"
	"penstock/core/rates"
)

// SplitRates learns, at one decode worker, the times by which ByCost compares: of prefills there and at prefill
// workers, and of transfers. Prefill workers are one: which of them gets a job is not known when it is decided. Until
// times are known the priors of core/rates hold, and transfers are believed to take what they take at 1 GB/s.
//
// It is not safe for concurrent use, and deterministic: time is an argument, which never decreases.
type SplitRates struct {
	learner       *rates.Learner
	local, remote *rates.WorkerRates
	transfers     [distances]transferRate
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

// NewSplitRates returns rates which have learned nothing, for blocks with so many bytes a token.
func NewSplitRates(cfg rates.Config, tokenBytes int) (*SplitRates, error) {
	l, err := rates.New(cfg)
	if err != nil {
		return nil, err
	}
	r := &SplitRates{learner: l}
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

// maxTransfer bounds what one transfer can say.
const maxTransfer = time.Hour

// RecordTransfer records that the blocks of so many tokens moved in a time.
func (r *SplitRates) RecordTransfer(from Distance, tokens int, took time.Duration) {
	ms := float64(min(max(took, time.Microsecond), maxTransfer)) / float64(time.Millisecond)
	t := &r.transfers[from]
	t.took = float64(transferForget*t.took) + ms
	t.expected = float64(transferForget*t.expected) + t.believed.transferMs(max(tokens, 1))
}

// Decide decides as [DecideAmong] does, with what is learned. It sets the times of transfers in among.
func (r *SplitRates) Decide(c *SplitConfig, in *SplitInputs, among *Candidates) Decision {
	for i := range r.transfers {
		t := &r.transfers[i]
		scale := t.took / t.expected
		among.Transfer[i] = TransferTime{float64(scale * t.believed.FixedMs), float64(scale * t.believed.TokenMs)}
	}
	return DecideAmong(c, in, among, r.local, r.remote)
}
