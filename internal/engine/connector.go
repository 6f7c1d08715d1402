package engine

import "penstock/core/disagg"

// KVConnector is how an engine moves KV blocks to other engines of the same make, and from them: without help, by what a
// router tells both of a request. It is part of the model card as its text. A value which is not known is one of a later
// version, whose engine is sent whole requests.
type KVConnector string

// The connectors.
const (
	// NIXLConnector is vLLM's NixlConnector, whose decode engine pulls. The Handoff is the kv_transfer_params which the
	// answer of the prefill leg had.
	NIXLConnector KVConnector = "vllm-nixl"
)

// LegOrder returns how the legs of a request are called for engines with the connector; ok is false if it is none, or not
// known.
func (c KVConnector) LegOrder() (order disagg.LegOrder, ok bool) {
	if c == NIXLConnector {
		return disagg.PrefillFirst, true
	}
	return 0, false
}

// CanPair reports whether a prefill leg of p's engine hands over to a decode leg of c's.
func (c *Card) CanPair(p *Card) bool {
	_, known := c.KVConnector.LegOrder()
	return known && !c.Router && p.KVConnector == c.KVConnector && p.Numerics == c.Numerics
}
