package remote

import (
	"errors"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// ErrEnough is returned by a dialect's HandleEvent when the rest of a response is not needed: the connection
// is closed, which tells the engine to stop.
var ErrEnough = errors.New("enough was read")

// Continuations says whether one choice may take several consecutive calls.
type Continuations uint8

// The values of Continuations.
const (
	OneCall Continuations = iota
	SeveralCalls
)

// DeliveredTokens returns how many tokens of the i-th choice this call has delivered.
func (p *SubRequest) DeliveredTokens(i int) int {
	if i < 0 || i >= len(p.Choices) {
		return 0
	}
	c := &p.attempt.choices[p.Choices[i]]
	return c.outputLen + len(c.tokens) - p.startLen
}

// IsFinished reports whether all choices of the call have finished, so that only the engine's last event is
// missing.
func (p *SubRequest) IsFinished() bool { return p.isFinished() }

// isPromptComputed reports whether the engine has computed the call's prompt.
func (p *SubRequest) isPromptComputed() bool { return p.DeliveredTokens(0) > 0 || p.isFinished() }

// LastToken returns the last output token delivered by a call for one choice; ok is false if there is none.
func (p *SubRequest) LastToken() (token kv.Token, ok bool) { return p.lastToken, p.hasLastToken }

// ContinueWith says that the rest of the output needs another call after this one: the dialect is called
// again, with the Generated, MaxTokens, MinTokens and Seed of that call. hole becomes p.Hole, for the
// dialect. It is for engines with [SeveralCalls], and calls for one choice.
func (p *SubRequest) ContinueWith(hole int) { p.continues, p.Hole = true, hole }

// SetSlot records the slot in which the engine reports to serve the call.
func (p *SubRequest) SetSlot(slot int) {
	if slot == p.Slot {
		return
	}
	p.Slot = slot
	p.attempt.base.cache.applyChange(func(out []kv.Event) []kv.Event { return p.attempt.base.cache.noteSlotLocked(p, slot, out) })
}

// recordOutput records the delivered tokens of a call.
func (p *SubRequest) recordOutput(tokens []kv.Token) {
	if len(tokens) == 0 || len(p.Choices) > 1 {
		return
	}
	p.lastToken, p.hasLastToken = tokens[len(tokens)-1], true
	if p.attempt.base.cfg.Continuations == SeveralCalls {
		if p.output == nil {
			p.output = slices.Clone(p.Generated)
		}
		p.output = append(p.output, tokens...)
	}
}

// prepareNext makes p the call for the rest of the output, if ContinueWith asked for one.
func (p *SubRequest) prepareNext() (more bool, err error) {
	c := &p.attempt.choices[p.Choices[0]]
	if !p.continues || c.finish != engine.NotFinished {
		return false, nil
	}
	if err := p.attempt.flushChoices(); err != nil {
		return false, err
	}
	n := c.outputLen - p.startLen
	if n == 0 && p.Hole == p.idleHole {
		return false, fault.New(fault.Unavailable, "the engine answers again and again without a token")
	}
	p.idleHole = -1
	if n == 0 {
		p.idleHole = p.Hole
	}
	p.attempt.base.cache.finishCall(p)
	if p.output != nil { // else nothing was delivered: the output of earlier attempts stays as it is
		p.Generated = slices.Clip(p.output)
	}
	p.continues, p.startLen = false, c.outputLen
	p.MaxTokens -= n
	p.MinTokens = max(p.MinTokens-n, 0)
	p.Seed = partSeed(p.Request.Sampling.Seed, p.Choices[0], c.outputLen)
	p.ID = p.attempt.base.newRequestID(p.Request)
	return true, nil
}
