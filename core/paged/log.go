package paged

import (
	"slices"

	"penstock/core/kv"
)

// minLogHashes is the smallest bound of the log, in hashes.
const minLogHashes = 1024

// eventLog keeps the changes of the cache until they are drained. It is bounded: when it would exceed a
// description of the whole cache it is dropped, and the next drain returns that description.
type eventLog struct {
	limit   int // hashes
	lost    bool
	changes []loggedChange
	blocks  []kv.BlockHash // of Stored changes, in order
	seqs    []kv.SeqHash   // of Removed changes, in order
	tip     kv.SeqHash     // prefix hash of the last stored block
}

// loggedChange is an event whose hashes are the next n of the log's.
type loggedChange struct {
	kind   kv.EventKind
	start  uint32
	parent kv.SeqHash
	n      int
}

func newEventLog(blocks int) eventLog { return eventLog{limit: max(blocks, minLogHashes)} }

// logStored adds c, to the last event if c continues it.
func (l *eventLog) logStored(c *blockContent) {
	if !l.hasRoom() {
		return
	}
	if last := l.lastOfKind(kv.Stored); last != nil && last.start+uint32(last.n) == c.index && l.tip == c.parentSeq {
		last.n++
	} else {
		l.changes = append(l.changes, loggedChange{kind: kv.Stored, start: c.index, parent: c.parentSeq, n: 1})
	}
	l.blocks = append(l.blocks, c.hash)
	l.tip = c.seq
}

// logRemoved adds seq, to the last event if that is a removal.
func (l *eventLog) logRemoved(seq kv.SeqHash) {
	if !l.hasRoom() {
		return
	}
	if last := l.lastOfKind(kv.Removed); last != nil {
		last.n++
	} else {
		l.changes = append(l.changes, loggedChange{kind: kv.Removed, n: 1})
	}
	l.seqs = append(l.seqs, seq)
}

// lastOfKind returns the last change if it is of this kind, else nil.
func (l *eventLog) lastOfKind(kind kv.EventKind) *loggedChange {
	if n := len(l.changes); n > 0 && l.changes[n-1].kind == kind {
		return &l.changes[n-1]
	}
	return nil
}

// hasRoom reports whether one more hash may be logged. If not, it drops the log.
func (l *eventLog) hasRoom() bool {
	if !l.lost && len(l.blocks)+len(l.seqs) == l.limit {
		l.reset()
		l.lost = true
	}
	return !l.lost
}

func (l *eventLog) reset() {
	l.lost = false
	l.changes, l.blocks, l.seqs = l.changes[:0], l.blocks[:0], l.seqs[:0]
}

// drainEvents appends the changes to dst as events which share no memory with the log.
func (l *eventLog) drainEvents(dst []kv.Event) []kv.Event {
	blocks, seqs := slices.Clone(l.blocks), slices.Clone(l.seqs)
	for _, c := range l.changes {
		e := kv.Event{Kind: c.kind}
		switch c.kind {
		case kv.Stored:
			e.Start, e.Parent = c.start, c.parent
			e.Blocks, blocks = blocks[:c.n:c.n], blocks[c.n:]
		case kv.Removed:
			e.Seqs, seqs = seqs[:c.n:c.n], seqs[c.n:]
		}
		dst = append(dst, e)
	}
	l.reset()
	return dst
}

// AppendEvents appends to dst the changes of the cache since the last call, in order, each once: Stored for
// a registered block, Removed for an evicted one.
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
