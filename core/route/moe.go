package route

import (
	"cmp"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// MaxExperts bounds the number of experts which a request may name.
const MaxExperts = 1024

// MoEQuery is router_config_override.moe_query as clients write it: the experts of one layer of a
// mixture-of-experts model which the request is expected to use. The router prefers blocks whose labels match
// it and workers which host the experts.
type MoEQuery struct {
	Layer *uint32 `json:"layer_id"`
	// Experts matches a label of any of them; an empty list matches all.
	Experts []uint32 `json:"expert_ids,omitempty"`
	Group   *uint32  `json:"expert_group,omitempty"`
	// Fallback says whether a worker without a labelled block of the prompt may be chosen; nil is true.
	Fallback *bool `json:"fallback_to_unlabeled,omitempty"`
}

const moeParam = "router_config_override.moe_query"

func (m *MoEQuery) validate() error {
	if m.Layer == nil {
		return fault.InvalidParam(moeParam+".layer_id", "a moe_query must say of which layer: set layer_id")
	}
	if len(m.Experts) > MaxExperts {
		return fault.InvalidParam(moeParam+".expert_ids", "must name at most %d experts, not %d", MaxExperts, len(m.Experts))
	}
	return nil
}

func (m *MoEQuery) toIndexQuery() (q kv.MoEQuery, ok bool) {
	if m == nil || m.Layer == nil {
		return q, false
	}
	q = kv.MoEQuery{Layer: *m.Layer, Experts: m.Experts, Fallback: m.Fallback == nil || *m.Fallback}
	if m.Group != nil {
		q.Group, q.HasGroup = *m.Group, true
	}
	return q, true
}

// LabelQuery returns the label query to send to the index for a request with this override; false if there is
// none.
func (o *Override) LabelQuery() (kv.MoEQuery, bool) { return o.MoE.toIndexQuery() }

// RequiresLabels reports whether only workers with a labelled block of the prompt may be chosen.
func (o *Override) RequiresLabels() bool {
	q, ok := o.LabelQuery()
	return ok && !q.Fallback
}

// Expert is one expert of one layer which a worker hosts.
type Expert struct {
	Layer, Expert uint32
	// Share is the share of the expert's tokens which the worker computes itself, from 0 to 1: less than 1
	// for a hot expert with other replicas.
	Share float64
}

// compareExperts orders experts by layer, then number.
func compareExperts(a, b Expert) int {
	return cmp.Or(cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Expert, b.Expert))
}

// hostedShare returns the share of the experts expected by q which are among hosted, which is ordered: the
// share of its tokens which need not go to another worker in that layer. It is 0 if q names no experts.
func hostedShare(q *kv.MoEQuery, hosted []Expert) float64 {
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
