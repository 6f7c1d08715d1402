package remote

import (
	"slices"

	"penstock/internal/engine"
)

// IsPrefillLeg reports whether the call computes the prompt for another engine, and at most one token.
func (p *SubRequest) IsPrefillLeg() bool { return p.Request.Leg == engine.LegPrefill }

// Handoff returns the JSON by which the engine gets the prompt's KV blocks from another one; nil if it computes them
// itself.
func (p *SubRequest) Handoff() []byte {
	if p.Request.Leg != engine.LegDecode || p.Request.Handoff == nil {
		return nil
	}
	return p.Request.Handoff.Opaque
}

// SetHandoff takes the JSON which the engine gave for the engine of the decode leg. It keeps a copy, and ignores what
// other calls get. What is no JSON, or too large, is an error.
func (p *SubRequest) SetHandoff(opaque []byte) error {
	if !p.IsPrefillLeg() {
		return nil
	}
	h := &engine.Handoff{Opaque: slices.Clone(opaque)}
	if err := h.Validate(); err != nil {
		return engine.ContractError("a handoff which cannot be passed on", err)
	}
	p.attempt.handoff = h
	return nil
}
