package prefix

import (
	"fmt"
	"math/bits"

	"penstock/core/kv"
)

// wheelSize is the number of lists by time of expiry: more than the ticks from any moment
// to the latest expiry, so that no list has two ticks' blocks.
const wheelSize = 2 * ticksPerTTL

// none is no place.
const none = ^uint32(0)

// beliefs are the blocks that one worker is believed to hold, and until when. A block has a
// place, with its hash and mark, in two parallel slices without pointers; table finds the
// place of a hash. The places whose blocks may expire in one tick are a list through next.
// A block that is used again is not moved to another list, only its mark is set: it is when
// its list comes up.
type beliefs struct {
	worker kv.Worker
	factor uint64 // see mix
	tells  bool   // the worker said of a prompt that some of it was cached
	seqs   []kv.SeqHash
	marks  []mark
	free   uint32   // list of places
	last   uint32   // place that was looked up last
	used   int      // places not in it
	live   int      // of those, the blocks that are believed in
	table  []uint32 // open addressing, linear, a power of two of slots: place+1, 0 if empty
	wheel  [wheelSize]uint32
}

// mark is the rest of a place.
type mark struct {
	due      int64  // tick with whose end the block expires; gone if it is refuted
	position uint32 // in its sequence
	next     uint32
}

func newBeliefs(w kv.Worker, factor uint64) *beliefs {
	b := &beliefs{worker: w, factor: factor, free: none, table: make([]uint32, 16)}
	for i := range b.wheel {
		b.wheel[i] = none
	}
	return b
}

// touched is what touch found.
type touched int

const (
	refreshed touched = iota
	inserted
	revived
)

// touch sets when a block expires, due, which is not before what it was.
func (b *beliefs) touch(seq kv.SeqHash, position uint32, due int64) touched {
	if at := b.lookup(seq); at != none {
		was := b.marks[at].due
		b.marks[at].due = due
		if was != gone {
			return refreshed
		}
		b.live++
		return revived
	}
	at := b.free
	if at != none {
		b.free = b.marks[at].next
	} else {
		at = uint32(len(b.seqs))
		b.seqs = append(b.seqs, 0)
		b.marks = append(b.marks, mark{})
	}
	b.seqs[at] = seq
	b.last = at
	b.marks[at] = mark{due: due, position: position}
	b.link(at)
	b.used++
	b.live++
	if 4*b.used > 3*len(b.table) {
		b.grow(2 * len(b.table))
	} else {
		b.enter(at)
	}
	return inserted
}

// doubt notes that a block is refuted, and reports whether it was believed in. Its place is
// given back when its list comes up, unless it is used again before.
func (b *beliefs) doubt(seq kv.SeqHash) bool {
	at := b.lookup(seq)
	if at == none || b.marks[at].due == gone {
		return false
	}
	b.marks[at].due = gone
	b.live--
	return true
}

// turn takes the list of a tick apart, when it is now: what has expired is appended to
// expired, and what was doubted is counted.
func (b *beliefs) turn(tick, now int64, expired []kv.SeqHash, doubted int) ([]kv.SeqHash, int) {
	at := b.take(tick)
	for at != none {
		next := b.marks[at].next
		switch due := b.marks[at].due; {
		case due == gone:
			doubted++
			b.release(at)
		case due <= now:
			expired = append(expired, b.seqs[at])
			b.live--
			b.release(at)
		default:
			b.link(at)
		}
		at = next
	}
	return expired, doubted
}

// soonest takes the list of a tick apart: the blocks that expire with it are appended to
// dst, and are in no list then.
func (b *beliefs) soonest(tick int64, dst []expiring, doubted int) ([]expiring, int) {
	at := b.take(tick)
	for at != none {
		next := b.marks[at].next
		switch due := b.marks[at].due; due {
		case gone:
			doubted++
			b.release(at)
		case tick:
			dst = append(dst, expiring{b.seqs[at], b, b.marks[at].position, at})
		default:
			b.link(at)
		}
		at = next
	}
	return dst, doubted
}

// take returns the list of a tick, which is empty then.
func (b *beliefs) take(tick int64) uint32 {
	head := &b.wheel[uint64(tick)%wheelSize]
	at := *head
	*head = none
	return at
}

// link puts a place into the list of its time.
func (b *beliefs) link(at uint32) {
	head := &b.wheel[uint64(b.marks[at].due)%wheelSize]
	b.marks[at].next, *head = *head, at
}

// release gives a place back that is in no list.
func (b *beliefs) release(at uint32) {
	b.leave(b.slot(b.seqs[at]))
	b.seqs[at] = 0
	b.marks[at] = mark{next: b.free}
	b.free = at
	b.used--
}

// lookup returns the place of a block, or none. The blocks of a prompt were mostly entered one after
// another, so that each is right behind the last one.
func (b *beliefs) lookup(seq kv.SeqHash) uint32 {
	at := b.last + 1
	if int(at) >= len(b.seqs) || b.seqs[at] != seq || seq == 0 { // 0 is in places that are free
		at = b.table[b.slot(seq)] - 1
	}
	if at != none {
		b.last = at
	}
	return at
}

// slot returns where seq is in the table, or where it would be entered.
func (b *beliefs) slot(seq kv.SeqHash) int {
	mask := len(b.table) - 1
	for i := b.home(seq); ; i = (i + 1) & mask {
		if p := b.table[i]; p == 0 || b.seqs[p-1] == seq {
			return i
		}
	}
}

// home is where the search for seq begins.
func (b *beliefs) home(seq kv.SeqHash) int {
	high, _ := bits.Mul64(mix(seq, b.factor), uint64(len(b.table)))
	return int(high)
}

func (b *beliefs) enter(at uint32) { b.table[b.slot(b.seqs[at])] = at + 1 }

// leave empties a slot of the table and moves up those that it kept from their homes.
func (b *beliefs) leave(hole int) {
	mask := len(b.table) - 1
	for i := (hole + 1) & mask; b.table[i] != 0; i = (i + 1) & mask {
		if home := b.home(b.seqs[b.table[i]-1]); (i-home)&mask >= (i-hole)&mask {
			b.table[hole] = b.table[i]
			hole = i
		}
	}
	b.table[hole] = 0
}

// grow rebuilds the table.
func (b *beliefs) grow(size int) {
	b.table = make([]uint32, size)
	for _, at := range b.wheel {
		for ; at != none; at = b.marks[at].next {
			b.enter(at)
		}
	}
}

// shrink gives memory back when three quarters of it are free.
func (b *beliefs) shrink() {
	if len(b.seqs) >= 64 && 4*b.used <= len(b.seqs) {
		b.rebuild()
	}
}

// rebuild moves what is believed into new memory of its size.
func (b *beliefs) rebuild() {
	old := *b
	*b = *newBeliefs(old.worker, old.factor)
	b.tells = old.tells
	size := len(b.table)
	for 3*size < 4*(old.live+1) {
		size *= 2
	}
	b.table = make([]uint32, size)
	b.seqs = make([]kv.SeqHash, 0, old.live)
	b.marks = make([]mark, 0, old.live)
	for _, at := range old.wheel {
		for ; at != none; at = old.marks[at].next {
			if m := old.marks[at]; m.due != gone {
				b.touch(old.seqs[at], m.position, m.due)
			}
		}
	}
}

func (b *beliefs) bytes() int {
	return 8*cap(b.seqs) + 16*cap(b.marks) + 4*len(b.table) + 4*wheelSize
}

// check reports the first violated invariant: every place is in one list, of its own or an
// earlier time, or free, and the table finds it.
func (b *beliefs) check(last int64) error {
	seen := make([]bool, len(b.seqs))
	used, live := 0, 0
	for i, at := range b.wheel {
		for ; at != none; at = b.marks[at].next {
			m := b.marks[at]
			switch {
			case seen[at]:
				return fmt.Errorf("prefix: check: worker %v has place %d in two lists", b.worker, at)
			case b.lookup(b.seqs[at]) != at:
				return fmt.Errorf("prefix: check: worker %v does not find block %x", b.worker, uint64(b.seqs[at]))
			case m.due != gone && (m.due <= last || m.due > last+wheelSize):
				return fmt.Errorf("prefix: check: worker %v has a block that expires at %d in list %d at %d", b.worker, m.due, i, last)
			}
			seen[at] = true
			used++
			if m.due != gone {
				live++
			}
		}
	}
	for at := b.free; at != none; at = b.marks[at].next {
		if seen[at] {
			return fmt.Errorf("prefix: check: worker %v has place %d free and in use", b.worker, at)
		}
		seen[at] = true
	}
	entered := 0
	for _, p := range b.table {
		if p != 0 {
			entered++
		}
	}
	if used != b.used || live != b.live || entered != used || 4*used > 3*len(b.table) {
		return fmt.Errorf("prefix: check: worker %v has %d places in use, %d alive, %d in its table; it counts %d and %d", b.worker, used, live, entered, b.used, b.live)
	}
	return nil
}
