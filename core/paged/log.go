package paged

import (
	"slices"

	"penstock/core/kv"
)

// minLogHashes is the smallest bound of the log, in hashes.
const leastLog = 1024

// eventLog keeps the changes of the cache until they are drained. It is bounded: when it would exceed a
// description of the whole cache it is dropped, and the next drain returns that description.
type log struct {
	limit   int // hashes
	lost    bool
	changes []change
	blocks  []kv.BlockHash // of Stored changes, in order
	seqs    []kv.SeqHash   // of Removed changes, in order
	tip     kv.SeqHash     // prefix hash of the last stored block
}

// loggedChange is an event whose hashes are the next n of the log's.
type change struct {
	kind   kv.EventKind
	start  uint32
	parent kv.SeqHash
	n      int
}

func newLog(blocks int) log { return log{limit: max(blocks, leastLog)} }

// logStored adds c, to the last event if c continues it.
func (l *log) stored(c *content) {
	if !l.room() {
		return
	}
	if last := l.last(kv.Stored); last != nil && last.start+uint32(last.n) == c.index && l.tip == c.after {
		last.n++
	} else {
		l.changes = append(l.changes, change{kind: kv.Stored, start: c.index, parent: c.after, n: 1})
	}
	l.blocks = append(l.blocks, c.hash)
	l.tip = c.seq
}

// logRemoved adds seq, to the last event if that is a removal.
func (l *log) removed(seq kv.SeqHash) {
	if !l.room() {
		return
	}
	if last := l.last(kv.Removed); last != nil {
		last.n++
	} else {
		l.changes = append(l.changes, change{kind: kv.Removed, n: 1})
	}
	l.seqs = append(l.seqs, seq)
}

// logCleared records that nothing is cached, and drops the earlier changes.
func (l *log) cleared() {
	l.reset()
	l.changes = append(l.changes, change{kind: kv.Cleared})
}

// lastOfKind returns the last change if it is of this kind, else nil.
func (l *log) last(kind kv.EventKind) *change {
	if n := len(l.changes); n > 0 && l.changes[n-1].kind == kind {
		return &l.changes[n-1]
	}
	return nil
}

// hasRoom reports whether one more hash may be logged. If not, it drops the log.
func (l *log) room() bool {
	if !l.lost && len(l.blocks)+len(l.seqs) == l.limit {
		l.reset()
		l.lost = true
	}
	return !l.lost
}

func (l *log) reset() {
	l.lost = false
	l.changes, l.blocks, l.seqs = l.changes[:0], l.blocks[:0], l.seqs[:0]
}

// drainEvents appends the changes to dst as events which share no memory with the log.
func (l *log) drain(dst []kv.Event) []kv.Event {
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
