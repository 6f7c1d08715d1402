package kv

import "slices"

// MoEQuery asks which blocks are labelled with experts which a request is expected to use.
type MoEQuery struct {
	Layer   uint32
	Experts []uint32 // any of them; empty is any
	Group   uint32   // valid if HasGroup
	// HasGroup restricts the answer to labels of Group.
	HasGroup bool
	// Fallback says that workers without a labelled block are eligible too. MatchesLabel ignores it.
	Fallback bool
}

// MatchesLabel reports whether a label matches the query.
func (q *MoEQuery) MatchesLabel(l MoELabel) bool {
	return l.Has&HasExpert != 0 && l.Layer == q.Layer &&
		(len(q.Experts) == 0 || slices.Contains(q.Experts, l.Expert)) &&
		(!q.HasGroup || l.Has&HasGroup != 0 && l.Group == q.Group)
}
