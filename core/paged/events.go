package paged

import "penstock/core/kv"

// AppendEvents appends to dst the changes of the cache since the last call, in order, each once: Stored for
// a registered block, Removed for an evicted one, Cleared for a Clear (earlier changes are left out).
// Consecutive changes share an event. The caller owns the events.
//
// If the changes take more than a description of the whole cache, the result is that of AppendDump. So a
// caller which never asks costs no more memory than that.
func (s *Scheduler) AppendEvents(dst []kv.Event) []kv.Event {
	if s.pool.log.lost {
		s.pool.log.reset()
		return s.AppendDump(dst)
	}
	return s.pool.log.drainEvents(dst)
}
