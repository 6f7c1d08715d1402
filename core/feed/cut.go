package feed

import "penstock/core/kv"

// The bounds of one record. At 8 bytes per hash, and 13 more for its label, it
// stays far below what any event plane carries, and a router that applies one holds
// its lock for a fraction of a millisecond.
const (
	maxRecordHashes = 4096
	maxRecordEvents = 1024
)

// Cutter hands out a run of events in pieces that fit a record. An event with
// more hashes than fit is divided: the blocks of a stored one go on from the
// prefix that the part before ends, and the access list of a moved one is in its first
// part alone, for it is that of the pool from there on; what it has beyond MaxAccess is
// left out, so that less is known of the pool. The zero value has none.
type Cutter struct {
	events []kv.Event
	piece  []kv.Event
}

// Reset takes the events that are handed out from now on.
func (c *Cutter) Reset(events []kv.Event) { c.events = events }

// Next returns the next piece, valid until the call after; empty at the end. It
// consumes the events of Reset but does not change them.
func (c *Cutter) Next() []kv.Event {
	c.piece = c.piece[:0]
	for room := maxRecordHashes; len(c.events) > 0 && len(c.piece) < maxRecordEvents; {
		ev := c.events[0]
		ev.Move.Access = ev.Move.Access[:min(len(ev.Move.Access), MaxAccess)]
		n := len(ev.Blocks) + len(ev.Seqs) + len(ev.Move.Access)
		if n <= room {
			c.piece, c.events, room = append(c.piece, ev), c.events[1:], room-n
			continue
		}
		if len(c.piece) > 0 {
			break // it begins the next piece, which may hold it whole
		}
		// An access list may fill a piece by itself; it goes with one hash at least.
		head, tail := divide(ev, max(1, room-len(ev.Move.Access)))
		c.piece = append(c.piece, head)
		// The rest stands in for the event from here on, in memory of its own:
		// the caller's slice is not ours to write.
		c.events = append([]kv.Event{tail}, c.events[1:]...)
		break
	}
	return c.piece
}

// divide splits an event with more than n hashes after the first n.
func divide(ev kv.Event, n int) (head, tail kv.Event) {
	head, tail = ev, ev
	if ev.Kind == kv.Removed || ev.Kind == kv.Moved {
		head.Seqs, tail.Seqs = ev.Seqs[:n], ev.Seqs[n:]
		tail.Move.Access = nil
		return head, tail
	}
	head.Blocks, tail.Blocks = ev.Blocks[:n], ev.Blocks[n:]
	head.Labels, tail.Labels = nil, nil
	if len(ev.Labels) == len(ev.Blocks) {
		head.Labels, tail.Labels = ev.Labels[:n], ev.Labels[n:]
	}
	for i, b := range head.Blocks {
		tail.Parent = kv.Extend(tail.Parent, ev.Start+uint32(i), b)
	}
	tail.Start = ev.Start + uint32(n)
	return head, tail
}
