package remote

import (
	"errors"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// ErrEnough is what a dialect's Event returns when nothing more of an answer is wanted although
// more would come: the connection is closed, by which the engine knows.
var ErrEnough = errors.New("enough was read")

// Legs says whether one choice may take several calls, one after another.
type Legs uint8

// Whether it may.
const (
	OneLeg Legs = iota
	ManyLegs
)

// Delivered returns how many tokens of the part's i-th choice this call has delivered.
func (p *Part) Delivered(i int) int {
	if i < 0 || i >= len(p.Choices) {
		return 0
	}
	c := &p.a.choices[p.Choices[i]]
	return c.have + len(c.tokens) - p.from
}

// Over reports whether all choices of the part have come to their end, so that only the
// engine's last word is waited for.
func (p *Part) Over() bool { return p.over() }

// begun reports whether the engine has computed the part's prompt.
func (p *Part) begun() bool { return p.Delivered(0) > 0 || p.over() }

// Last returns the last token of output that was delivered of a part of one choice; ok is false
// if there is none.
func (p *Part) Last() (token kv.Token, ok bool) { return p.last, p.hasLast }

// Again says that what is left of the part takes another call when this one has ended: the
// dialect is asked for it, with Generated, MaxTokens, MinTokens and Seed of that. hole becomes
// p.Hole, for the dialect. It is for engines with [ManyLegs], and parts of one choice.
func (p *Part) Again(hole int) { p.again, p.Hole = true, hole }

// Placed says in which slot the engine serves the part, by its own account.
func (p *Part) Placed(slot int) {
	if slot == p.Slot {
		return
	}
	p.Slot = slot
	p.a.b.cache.change(func(out []kv.Event) []kv.Event { return p.a.b.cache.placed(p, slot, out) })
}

// grown remembers what was delivered of a part.
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

// next makes p the call for what is left, if another one was asked for.
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
	if p.kept != nil { // else nothing was delivered: what earlier attempts did stays as it is
		p.Generated = slices.Clip(p.kept)
	}
	p.again, p.from = false, c.have
	p.MaxTokens -= n
	p.MinTokens = max(p.MinTokens-n, 0)
	p.Seed = seedOf(p.Request.Sampling.Seed, p.Choices[0], c.have)
	p.ID = p.a.b.requestID(p.Request)
	return true, nil
}
