package router

import (
	"penstock/core/kv"
	"penstock/core/prefix"
)

// lookup is the memory of one lookup.
type lookup struct {
	match    prefix.Match
	known    []kv.Overlap // by events
	expected []kv.Overlap // by prediction
	both     []kv.Overlap
}

// clear makes l that of a prompt that was not looked up.
func (l *lookup) clear() { l.known, l.expected, l.both = l.known[:0], l.expected[:0], l.both[:0] }

// lookUp finds, by events and by prediction, who holds how much of the prompt whose full
// blocks end in chain; of labels only if asks. The answer is in l. It waits for nobody.
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
