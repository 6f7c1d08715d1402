package router

import (
	"penstock/core/kv"
	"penstock/core/prefix"
)

// prefixLookup is the memory of one lookup.
type prefixLookup struct {
	match    prefix.Match
	known    []kv.Overlap // from events
	expected []kv.Overlap // from predictions
	both     []kv.Overlap
}

// reset empties l, as for a prompt that was not looked up.
func (l *prefixLookup) reset() { l.known, l.expected, l.both = l.known[:0], l.expected[:0], l.both[:0] }

// lookUpPrefix finds, from events and predictions, which workers hold how much of the prompt whose full
// blocks end in chain; it considers labels only if asks. The result is memory of l. It takes no lock.
func (r *Router) lookUpPrefix(l *prefixLookup, chain []kv.SeqHash, moe *kv.MoEQuery, asks bool) []kv.Overlap {
	l.reset()
	if !asks {
		moe = nil
	}
	if r.usesEvents {
		r.cache.matchPrefix(&l.match, chain, moe)
		l.known = l.match.AppendOverlaps(l.known)
	}
	if !r.predictions.isEnabled() {
		return l.known
	}
	r.predictions.matchPrefix(&l.match, chain)
	l.expected = l.match.AppendOverlaps(l.expected)
	l.both = prefix.AppendLarger(l.both, l.known, l.expected)
	return l.both
}
