package kv

import "slices"

// MoEQuery asks which blocks are labelled with experts that a request is expected to use.
type MoEQuery struct {
	Layer   uint32
	Experts []uint32 // any of them; empty is any
	Group   uint32   // means something if HasGroup
	// HasGroup restricts the answer to labels of Group.
	HasGroup bool
	// Fallback says that blocks without a label may be used too: without it only
	// workers with a labelled block are eligible. It has no part in Matches.
	Fallback bool
}

// Matches reports whether a label answers the query.
func (q *MoEQuery) Matches(l MoELabel) bool {
	return l.Has&HasExpert != 0 && l.Layer == q.Layer &&
		(len(q.Experts) == 0 || slices.Contains(q.Experts, l.Expert)) &&
		(!q.HasGroup || l.Has&HasGroup != 0 && l.Group == q.Group)
}
