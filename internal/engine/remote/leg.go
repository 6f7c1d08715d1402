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
type Legs uint8

// The values of Continuations.
const (
	OneLeg Legs = iota
	ManyLegs
)

// DeliveredTokens returns how many tokens of the i-th choice this call has delivered.
func (p *Part) Delivered(i int) int {
	if i < 0 || i >= len(p.Choices) {
		return 0
	}
	c := &p.a.choices[p.Choices[i]]
	return c.have + len(c.tokens) - p.from
}

// IsFinished reports whether all choices of the call have finished, so that only the engine's last event is
// missing.
func (p *Part) Over() bool { return p.over() }

// isPromptComputed reports whether the engine has computed the call's prompt.
func (p *Part) begun() bool { return p.Delivered(0) > 0 || p.over() }

// LastToken returns the last output token delivered by a call for one choice; ok is false if there is none.
func (p *Part) Last() (token kv.Token, ok bool) { return p.last, p.hasLast }

// ContinueWith says that the rest of the output needs another call after this one: the dialect is called
// again, with the Generated, MaxTokens, MinTokens and Seed of that call. hole becomes p.Hole, for the
// dialect. It is for engines with [SeveralCalls], and calls for one choice.
func (p *Part) Again(hole int) { p.again, p.Hole = true, hole }

// SetSlot records the slot in which the engine reports to serve the call.
func (p *Part) Placed(slot int) {
	if slot == p.Slot {
		return
	}
	p.Slot = slot
	p.a.b.cache.change(func(out []kv.Event) []kv.Event { return p.a.b.cache.placed(p, slot, out) })
}

// recordOutput records the delivered tokens of a call.
func (p *Part) grown(tokens []kv.Token) {
	if len(tokens) == 0 || len(p.Choices) > 1 {
		return
	}
	p.last, p.hasLast = tokens[len(tokens)-1], true
	if p.a.b.cfg.Legs == ManyLegs {
		if p.kept == nil {
			p.kept = slices.Clone(p.Generated)
		}
		p.kept = append(p.kept, tokens...)
	}
}

// prepareNext makes p the call for the rest of the output, if ContinueWith asked for one.
func (p *Part) next() (more bool, err error) {
	c := &p.a.choices[p.Choices[0]]
	if !p.again || c.over != engine.NotFinished {
		return false, nil
	}
	if err := p.a.flush(); err != nil {
		return false, err
	}
	n := c.have - p.from
	if n == 0 && p.Hole == p.idleHole {
		return false, fault.New(fault.Unavailable, "the engine answers again and again without a token")
	}
	p.idleHole = -1
	if n == 0 {
		p.idleHole = p.Hole
	}
	p.a.b.cache.end(p)
	if p.kept != nil { // else nothing was delivered: the output of earlier attempts stays as it is
		p.Generated = slices.Clip(p.kept)
	}
	p.again, p.from = false, c.have
	p.MaxTokens -= n
	p.MinTokens = max(p.MinTokens-n, 0)
	p.Seed = seedOf(p.Request.Sampling.Seed, p.Choices[0], c.have)
	p.ID = p.a.b.requestID(p.Request)
	return true, nil
}
