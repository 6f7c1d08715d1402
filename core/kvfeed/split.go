package kvfeed

import "penstock/core/kv"

// The bounds of one record. At 8 bytes per hash, and 13 more for its label, it stays far below the message
// limit of any event plane, and a router which applies one holds its lock for a fraction of a millisecond.
const (
	maxRecordHashes = 4096
	maxRecordEvents = 1024
)

// RecordSplitter divides a sequence of events into parts which fit a record. It splits an event with more
// hashes than fit. The rest of a stored event continues from the prefix at which the previous part ends. The
// access list of a moved event is only in its first part, because it applies to the pool from then on; it is
// cut to MaxAccess, so that less is known of the pool. The zero value has no events.
type RecordSplitter struct {
	events []kv.Event
	part   []kv.Event
}

// Reset sets the events to split.
func (c *RecordSplitter) Reset(events []kv.Event) { c.events = events }

// Next returns the next part, valid until the next call; it is empty at the end. It consumes the events of
// Reset but does not change them.
func (c *RecordSplitter) Next() []kv.Event {
	c.part = c.part[:0]
	for room := maxRecordHashes; len(c.events) > 0 && len(c.part) < maxRecordEvents; {
		ev := c.events[0]
		ev.Move.Access = ev.Move.Access[:min(len(ev.Move.Access), MaxAccess)]
		n := len(ev.Blocks) + len(ev.Seqs) + len(ev.Move.Access)
		if n <= room {
			c.part, c.events, room = append(c.part, ev), c.events[1:], room-n
			continue
		}
		if len(c.part) > 0 {
			break // it starts the next part, which may hold it whole
		}
		// An access list may fill a part by itself; it goes with at least one hash.
		head, tail := splitEvent(ev, max(1, room-len(ev.Move.Access)))
		c.part = append(c.part, head)
		// The rest replaces the event, in newly allocated memory: the caller's slice must not be written.
		c.events = append([]kv.Event{tail}, c.events[1:]...)
		break
	}
	return c.part
}

// splitEvent splits an event with more than n hashes after the first n.
func splitEvent(ev kv.Event, n int) (head, tail kv.Event) {
	head, tail = ev, ev
	head.Labels, tail.Labels = nil, nil
	if hasLabels(&ev) {
		head.Labels, tail.Labels = ev.Labels[:n], ev.Labels[n:]
	}
	if ev.Kind == kv.Removed || ev.Kind == kv.Moved {
		head.Seqs, tail.Seqs = ev.Seqs[:n], ev.Seqs[n:]
		tail.Move.Access = nil
		return head, tail
	}
	head.Blocks, tail.Blocks = ev.Blocks[:n], ev.Blocks[n:]
	for i, b := range head.Blocks {
		tail.Parent = kv.ExtendSeq(tail.Parent, ev.Start+uint32(i), b)
	}
	tail.Start = ev.Start + uint32(n)
	return head, tail
}
