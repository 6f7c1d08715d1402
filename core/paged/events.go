package paged

import "penstock/core/kv"

// Events appends to dst what changed in the cache since the last call, in order,
// each change once: Stored for a block registered, Removed for one evicted, Cleared
// for a Clear (what came before that is left out). Consecutive changes share an
// event. The events belong to the caller.
//
// If more happened than it takes to describe the whole cache, the answer is that
// of Dump; so a shell that never asks costs no more memory than that.
func (s *Scheduler) Events(dst []kv.Event) []kv.Event {
	if s.pool.log.lost {
		s.pool.log.reset()
		return s.Dump(dst)
	}
	return s.pool.log.drain(dst)
}
