package batch

import (
	"slices"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// progress follows what was delivered of a request, so that it can be started again.
type progress struct {
	sink      func(*engine.Delta) error
	next      engine.Request // continues after what was delivered
	restarted bool
	accepted  bool
	begun     []bool // choices with tokens from this attempt
}

func newProgress(req *engine.Request, sink func(*engine.Delta) error) *progress {
	p := &progress{sink: sink, next: *req, begun: make([]bool, req.Choices)}
	p.next.Generated = make([][]kv.Token, req.Choices)
	for i := range p.next.Generated {
		p.next.Generated[i] = slices.Clone(deliveredTokens(req, i))
	}
	p.next.Done = make([]bool, req.Choices)
	copy(p.next.Done, req.Done)
	return p
}

// deliver passes a delta on. A request that was started again is accepted once, and says once how much of its
// prompt was cached.
func (p *progress) deliver(d *engine.Delta) error {
	if d.Accepted {
		if p.accepted {
			return nil
		}
		p.accepted = true
		return p.sink(d)
	}
	if p.restarted && p.begun[d.Choice] {
		d.Cached = 0
	}
	if !p.restarted {
		p.next.Generated[d.Choice] = append(p.next.Generated[d.Choice], d.Tokens...)
		p.next.Done[d.Choice] = p.next.Done[d.Choice] || d.Finish != engine.NotFinished
		p.begun[d.Choice] = p.begun[d.Choice] || len(d.Tokens) > 0
	}
	return p.sink(d)
}

// restart returns the request that continues after what was delivered.
func (p *progress) restart() *engine.Request {
	p.restarted = true
	return &p.next
}
