package paged

import (
	"math"
	"slices"

	"penstock/core/fault"
)

// TokenRange is the tokens of a sequence from Start up to, not including, End.
type TokenRange struct{ Start, End int }

// RangeID names an unfinished range of a sequence by its index in [Sequence.Unfinished].
type RangeID struct {
	Seq   SeqID
	Index int
}

// noLimit is the limit of a sequence which needs no unfinished range.
const noLimit = math.MaxInt

// validatePartial returns why the unfinished ranges or the transfer of a sequence cannot be, or nil.
func (c *Config) validatePartial(seq *Sequence) error {
	switch end := seq.TransferEnd; {
	case end < 0 || end >= len(seq.Tokens) || end%c.BlockSize != 0:
		return fault.New(fault.Invalid, "a transfer of the first %d of %d tokens: it must be of whole blocks of %d, and not of the last token", end, len(seq.Tokens), c.BlockSize)
	case end > 0 && seq.Hold && !seq.LateTransfer:
		return fault.New(fault.Invalid, "a sequence which holds its blocks for a transfer gets them by one only when they are reserved")
	}
	for i, r := range seq.Unfinished {
		if r.Start < 0 || r.Start >= r.End || r.End > len(seq.Tokens) {
			return fault.New(fault.Invalid, "unfinished range %d is of the tokens from %d to %d, of a sequence of %d", i, r.Start, r.End, len(seq.Tokens))
		}
	}
	return nil
}

// FinishRange says that the tokens of a range can be computed from now on, and reports whether there is such
// an unfinished range. It may be called at any time, also between Step and Commit.
func (s *Scheduler) FinishRange(r RangeID) bool {
	q := s.byID[r.Seq]
	if q == nil || !q.partial.isUnfinished(r.Index) {
		return false
	}
	s.countPartial(q, -1)
	q.partial.unfinished[r.Index] = TokenRange{}
	s.updateLimit(q)
	return true
}

// updateLimit updates the limit of q, of which less is unfinished than before, and counts q again.
func (s *Scheduler) updateLimit(q *seqState) {
	q.limit, q.partial.lacked = s.limitOf(q, q.readyTokens()), 0
	s.countPartial(q, 1)
	if q.queue == inWaiting {
		s.gate.closed = false // it may fit if encoding sequences give up their blocks
	}
}

// isUnfinished reports whether there is such an unfinished range.
func (p *partialState) isUnfinished(index int) bool {
	return p != nil && index >= 0 && index < len(p.unfinished) && p.unfinished[index] != TokenRange{}
}

// ReopenRanges makes all ranges of a waiting sequence which Reopens unfinished again, and reports whether there is
// such a sequence.
func (s *Scheduler) ReopenRanges(id SeqID) bool {
	q := s.byID[id]
	if q == nil || q.queue != inWaiting || !q.partial.reopens() {
		return false
	}
	s.countPartial(q, -1)
	q.partial.reopenRanges()
	q.limit = s.limitOf(q, 0)
	s.countPartial(q, 1)
	return true
}

// reopens reports whether the ranges can become unfinished again.
func (p *partialState) reopens() bool { return p != nil && len(p.all) > 0 }

// reopenRanges makes all ranges unfinished again, if the sequence reopens them.
func (p *partialState) reopenRanges() {
	if p.reopens() {
		copy(p.unfinished, p.all)
	}
}

// limitOf returns how many of q's tokens can be computed if the first ready ones need no computation: those
// before the first unfinished range which ends after them, and none before a transfer is over; noLimit if there is
// neither.
func (s *Scheduler) limitOf(q *seqState, ready int) int {
	limit := noLimit
	if q.partial == nil {
		return limit
	}
	if q.partial.transferEnd > ready {
		return 0
	}
	for _, r := range q.partial.unfinished {
		if r.End > ready {
			limit = min(limit, r.Start)
		}
	}
	if limit != noLimit && s.cfg.Chunking == Off {
		return 0
	}
	return limit
}

// isEncoding reports whether q needs an unfinished range or a transfer.
func (q *seqState) isEncoding() bool { return q.limit != noLimit }

// isPassable reports whether q, which waits, is passed over if it does not fit and its first ready tokens are cached: it
// needs an unfinished range, or a transfer which has started.
func (s *Scheduler) isPassable(q *seqState, ready int) bool {
	if q.partial != nil && q.partial.lateTransfer {
		ready = max(ready, q.partial.transferEnd)
	}
	return s.limitOf(q, ready) != noLimit
}

// partialCounts are figures of sequences which were added with unfinished ranges.
type partialCounts struct {
	encoding  [queueCount]int // encoding sequences, by queue
	resumable int             // paused sequences which can compute something
	reserved  int             // blocks of paused sequences for tokens which are not computed
}

// countPartial adds n times q to the counts. Callers subtract it before they change what is counted of it.
func (s *Scheduler) countPartial(q *seqState, n int) {
	if q.partial == nil {
		return
	}
	if q.isEncoding() {
		s.partial.encoding[q.queue] += n
	}
	if q.queue == inPaused {
		s.partial.reserved += n * (len(q.blocks) - s.cfg.blocksFor(q.readyTokens()))
		if q.pendingTokens() > 0 {
			s.partial.resumable += n
		}
	}
}

// moveSequence moves q from its queue to another.
func (s *Scheduler) moveSequence(q *seqState, to queueName) {
	s.leaveQueue(q)
	s.enterQueue(q, to)
}

// resumeSequences returns paused sequences which can compute something to the batch, oldest first, as long as
// there are places, and reports whether there were any.
func (s *Scheduler) resumeSequences() (resumed bool) {
	for q := s.paused.head; s.partial.resumable > 0 && s.hasPlace(); {
		next := q.next
		if q.pendingTokens() > 0 {
			s.moveSequence(q, inRunning)
			resumed = true
		}
		q = next
	}
	return resumed
}

// holdsEncoding reports whether encoding sequences hold blocks.
func (s *Scheduler) holdsEncoding() bool {
	return s.partial.encoding[inRunning]+s.partial.encoding[inPaused] > 0
}

// newestHolder returns the sequence which gives up its blocks first: the newest encoding one which holds any, or, if
// there is none, the newest of all.
func (s *Scheduler) newestHolder() *seqState {
	encoding := s.holdsEncoding()
	return s.newestWhere(func(q *seqState) bool { return !encoding || q.isEncoding() })
}

// newestWhere returns the newest sequence which satisfies ok and can give up its blocks; nil if there is none.
func (s *Scheduler) newestWhere(ok func(*seqState) bool) (newest *seqState) {
	for _, l := range [...]*sequenceQueue{&s.running, &s.paused} {
		q := l.tail
		for q != nil && !ok(q) {
			q = q.prev
		}
		if q != nil && (newest == nil || q.arrival > newest.arrival) {
			newest = q
		}
	}
	return newest
}

// reclaimFor preempts encoding sequences, except older ones which await transfers, until q fits with its hits, and
// reports whether it does. q waits and cannot be passed over. It preempts none if all of them together are too few.
func (s *Scheduler) reclaimFor(q *seqState, hits []int32, out *Step) bool {
	if !s.holdsEncoding() || s.missingBlocks(q, hits) > s.reclaimableBlocks(q, hits) {
		return false
	}
	for s.missingBlocks(q, hits) > 0 {
		s.preemptSequence(s.newestWhere(q.mayReclaim), out)
	}
	return true
}

// mayReclaim reports whether v gives up its blocks for the admission of q: it is encoding, and if it awaits a transfer it
// is newer than q. What another worker has computed for it is lost.
func (q *seqState) mayReclaim(v *seqState) bool {
	return v.isEncoding() && (!v.awaitsTransfer() || v.arrival > q.arrival)
}

// reclaimableBlocks returns how many blocks, except these hits of q, only sequences hold which give them up for q.
func (s *Scheduler) reclaimableBlocks(q *seqState, hits []int32) (n int) {
	clear(s.shares)
	for _, l := range [...]*sequenceQueue{&s.running, &s.paused} {
		for v := l.head; v != nil; v = v.next {
			if !q.mayReclaim(v) {
				continue
			}
			for i, b := range v.blocks {
				refs := s.pool.blocks[b].refs
				switch {
				case i < len(hits) && hits[i] == b:
				case refs == 1:
					n++
				default:
					if s.shares == nil {
						s.shares = map[int32]int32{}
					}
					if s.shares[b]++; s.shares[b] == refs {
						n++
					}
				}
			}
		}
	}
	return n
}

// isKnownShort reports whether q, which waits, was passed over and cannot fit now: it still needs the range, it has
// no more hits than then, and there are fewer blocks than it needs beside them.
func (s *Scheduler) isKnownShort(q *seqState) bool {
	if s.cfg.Remote != nil || q.partial.lacked == 0 {
		return false // remote memory may have what it needed
	}
	_, registered := s.pool.index[q.partial.missed]
	return !registered && q.partial.lacked+s.reserve() > s.pool.availableBlocks()
}

// isPreempted reports whether a step has preempted q already.
func (o *Step) isPreempted(q *seqState) bool {
	return len(o.Preempted) > 0 && slices.Contains(o.Preempted, q.id)
}

// cancelReservation forgets the admission of q in the same step, and reports whether there was one.
func (o *Step) cancelReservation(q *seqState) bool {
	i := slices.IndexFunc(o.Reserved, func(r Reservation) bool { return r.ID == q.id })
	if i < 0 {
		return false
	}
	o.Reserved = slices.Delete(o.Reserved, i, i+1)
	return true
}
