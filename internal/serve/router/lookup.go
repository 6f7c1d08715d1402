package router

import (
	"penstock/core/kv"
	"penstock/core/prefix"
)

// prefixLookup is the memory of one lookup.
type lookup struct {
	match    prefix.Match
	known    []kv.Overlap // from events
	expected []kv.Overlap // from predictions
	both     []kv.Overlap
}

// reset empties l, as for a prompt that was not looked up.
func (l *lookup) clear() { l.known, l.expected, l.both = l.known[:0], l.expected[:0], l.both[:0] }

// lookUpPrefix finds, from events and predictions, which workers hold how much of the prompt whose full
// blocks end in chain; it considers labels only if asks. The result is memory of l. It takes no lock.
func (r *Router) lookUp(l *lookup, chain []kv.SeqHash, moe *kv.MoEQuery, asks bool) []kv.Overlap {
	l.clear()
	if !asks {
		moe = nil
	}
	if r.events {
		r.cache.match(&l.match, chain, moe)
		l.known = l.match.AppendOverlaps(l.known)
	}
	if !r.predict.on() {
		return l.known
	}
	r.predict.match(&l.match, chain)
	l.expected = l.match.AppendOverlaps(l.expected)
	l.both = prefix.AppendLarger(l.both, l.known, l.expected)
	return l.both
}
