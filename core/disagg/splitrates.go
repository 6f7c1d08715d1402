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
	tokenMs       float64 // of a transfer, before anything is learned
	// took and expected are decayed sums of transfers, in ms: what they took, and what they were believed to take.
	took, expected float64
}

// What is believed of transfers before they are known: a fixed part in ms, and bytes in a ms. Both are scaled alike by
// what is learned; transferForget is the weight of earlier transfers relative to the next one, and the prior has that
// of priorTokens.
const (
	transferFixedMs = 1.0
	transferBytesMs = 1e6
	transferForget  = 0.9
	priorTokens     = 1024
)

// NewSplitRates returns rates which have learned nothing, for blocks with so many bytes a token.
func NewSplitRates(cfg rates.Config, tokenBytes int) (*SplitRates, error) {
	l, err := rates.New(cfg)
	if err != nil {
		return nil, err
	}
	r := &SplitRates{learner: l, tokenMs: float64(tokenBytes) / transferBytesMs}
	r.local, r.remote = l.WorkerOf(kv.Worker{ID: 1}), l.WorkerOf(kv.Worker{ID: 2})
	r.took = r.believedMs(priorTokens)
	r.expected = r.took
	return r, nil
}

// believedMs is what a transfer was believed to take.
func (r *SplitRates) believedMs(tokens int) float64 {
	return transferFixedMs + float64(r.tokenMs*float64(tokens))
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
func (r *SplitRates) RecordTransfer(tokens int, took time.Duration) {
	ms := float64(min(max(took, time.Microsecond), maxTransfer)) / float64(time.Millisecond)
	r.took = float64(transferForget*r.took) + ms
	r.expected = float64(transferForget*r.expected) + r.believedMs(max(tokens, 1))
}

// Decide decides as [Decide] does, with what is learned. It sets the times of a transfer in the inputs.
func (r *SplitRates) Decide(c *SplitConfig, in *SplitInputs) Decision {
	scale := r.took / r.expected
	in.TransferFixedMs, in.TransferTokenMs = float64(scale*transferFixedMs), float64(scale*r.tokenMs)
	return Decide(c, in, r.local, r.remote)
}
