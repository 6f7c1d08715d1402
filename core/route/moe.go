package route

import (
	"cmp"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// MaxExperts bounds the experts that a request may name.
const MaxExperts = 1024

// MoEQuery is router_config_override.moe_query as clients write it: the experts of one
// layer of a mixture-of-experts model that the request is expected to use. Blocks whose
// labels answer it, and workers that host the experts, are preferred.
type MoEQuery struct {
	Layer *uint32 `json:"layer_id"`
	// Experts are any of them; none names all.
	Experts []uint32 `json:"expert_ids,omitempty"`
	Group   *uint32  `json:"expert_group,omitempty"`
	// Fallback is whether a worker may be chosen that has no labelled block of the
	// prompt; nil is true.
	Fallback *bool `json:"fallback_to_unlabeled,omitempty"`
}

const moeParam = "router_config_override.moe_query"

func (m *MoEQuery) check() error {
	if m.Layer == nil {
		return fault.Param(moeParam+".layer_id", "a moe_query must say of which layer: set layer_id")
	}
	if len(m.Experts) > MaxExperts {
		return fault.Param(moeParam+".expert_ids", "must name at most %d experts, not %d", MaxExperts, len(m.Experts))
	}
	return nil
}

func (m *MoEQuery) query() (q kv.MoEQuery, ok bool) {
	if m == nil || m.Layer == nil {
		return q, false
	}
	q = kv.MoEQuery{Layer: *m.Layer, Experts: m.Experts, Fallback: m.Fallback == nil || *m.Fallback}
	if m.Group != nil {
		q.Group, q.HasGroup = *m.Group, true
	}
	return q, true
}

// Labels returns what to ask the index about labels for a request with this override;
// false if nothing.
func (o *Override) Labels() (kv.MoEQuery, bool) { return o.MoE.query() }

// Strict reports whether only workers with a labelled block of the prompt may be chosen.
func (o *Override) Strict() bool {
	q, ok := o.Labels()
	return ok && !q.Fallback
}

// Expert is one expert of one layer that a worker hosts.
type Expert struct {
	Layer, Expert uint32
	// Share is how much of the tokens for the expert the worker computes itself, from 0
	// to 1: less than 1 for a hot expert whose other replicas take part of them.
	Share float64
}

// compareExperts orders experts by layer, then number.
func compareExperts(a, b Expert) int {
	return cmp.Or(cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Expert, b.Expert))
}

// hosted returns the share of the experts that q expects which are among hosted, ordered:
// what of its tokens need not leave the worker in that layer. Without experts nothing is
// expected.
func hosted(q *kv.MoEQuery, hosted []Expert) float64 {
	if len(q.Experts) == 0 || len(hosted) == 0 {
		return 0
	}
	sum := 0.0
	for _, expert := range q.Experts {
		at, found := slices.BinarySearchFunc(hosted, Expert{Layer: q.Layer, Expert: expert}, compareExperts)
		if found {
			sum += hosted[at].Share
		}
	}
	return sum / float64(len(q.Experts))
}
