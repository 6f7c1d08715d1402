package prefix

import (
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// wheelSize is the number of lists by time of expiry: more than the ticks from any moment
// to the latest expiry, so that no list has two ticks' blocks.
const wheelSize = 2 * ticksPerTTL

// none is no place.
const none = ^uint32(0)

// beliefs say until when one worker is believed to hold what the index says of it. Prompts
// come whole, so what expires together is a stretch: blocks that follow one another in one prompt.
// A prompt that leaves another one in the middle of a stretch divides it. A stretch has a place, and
// table finds the place of a stretch by its first block. The places of the stretches that may expire
// in one tick are a list. A stretch that is used again is not moved to another list, only its time
// is set: it is moved when its list comes up.
//
// Every block that the index has of the worker is in one stretch. A stretch may have blocks that are
// not in the index: those that were refuted, or refused.
type beliefs struct {
	worker kv.Worker
	factor uint64 // see mix
	tells  bool   // the worker said of a prompt that some of it was cached
	// gaps says that there may be stretches whose first block follows one that is in no stretch.
	gaps      bool
	stretches []stretch
	free      uint32   // list of places
	used      int      // places not in it
	kept      int      // blocks of stretches
	room      int      // blocks that the memory of stretches has room for
	table     []uint32 // open addressing, linear, a power of two of slots: place+1, 0 if empty
	wheel     [wheelSize]uint32
	// live and counted are the blocks in the index and in stretches when Approx.count asked last.
	live, counted int
}

// stretch is blocks that follow one another in one prompt, the first at position start.
type stretch struct {
	head  kv.SeqHash   // the first
	seqs  []kv.SeqHash // all; the memory is the stretch's own
	due   int64        // tick with whose end they expire
	start uint32
	list  uint32 // in beliefs.wheel
	// prev and next are the neighbours in the list; next is that in beliefs.free too.
	prev, next uint32
}

func newBeliefs(w kv.Worker, factor uint64) *beliefs {
	b := &beliefs{worker: w, factor: factor, free: none, table: make([]uint32, 16)}
	for i := range b.wheel {
		b.wheel[i] = none
	}
	return b
}

// touch has the blocks of a prompt expire at due, which is not before they did, and returns how
// many leading ones were in stretches.
func (b *beliefs) touch(chain []kv.SeqHash, due int64) (known int) {
	fresh := false
	for i := 0; i < len(chain); {
		at := b.find(chain[i])
		if at == none {
			n := b.unknown(chain[i:])
			b.add(chain[i:i+n], uint32(i), due)
			i += n
			fresh = true
			continue
		}
		n := common(b.stretches[at].seqs, chain[i:])
		if n < len(b.stretches[at].seqs) && b.stretches[at].due != due {
			b.divide(at, n)
		}
		b.stretches[at].due = due
		i += n
		if !fresh {
			known = i
		}
	}
	return known
}

// unknown returns how many leading blocks of chain, whose first is in no stretch, are in none.
func (b *beliefs) unknown(chain []kv.SeqHash) int {
	n := 1
	if !b.gaps { // whoever has a block has all before it
		return len(chain)
	}
	for n < len(chain) && b.find(chain[n]) == none {
		n++
	}
	return n
}

// common returns how many leading blocks are equal.
func common(p, q []kv.SeqHash) int {
	n := 0
	for n < len(p) && n < len(q) && p[n] == q[n] {
		n++
	}
	return n
}

// add makes a stretch of blocks that are in none, and returns its place.
func (b *beliefs) add(seqs []kv.SeqHash, start uint32, due int64) uint32 {
	at := b.free
	if at != none {
		b.free = b.stretches[at].next
	} else {
		at = uint32(len(b.stretches))
		b.stretches = append(b.stretches, stretch{})
	}
	r := &b.stretches[at]
	b.room -= cap(r.seqs)
	r.seqs = append(r.seqs[:0], seqs...)
	b.room += cap(r.seqs)
	r.head, r.due, r.start = seqs[0], due, start
	b.link(at)
	b.kept += len(seqs)
	b.used++
	if 4*b.used > 3*len(b.table) {
		b.grow(2 * len(b.table))
	} else {
		b.enter(at)
	}
	return at
}

// divide makes a stretch of its own of what a stretch has after its first n blocks.
func (b *beliefs) divide(at uint32, n int) {
	r := b.stretches[at]
	b.kept -= len(r.seqs) - n
	b.stretches[at].seqs = r.seqs[:n]
	b.add(r.seqs[n:], r.start+uint32(n), r.due)
}

// cut leaves the first n blocks, one at least, of a stretch that is in no list.
func (b *beliefs) cut(at uint32, n int) {
	r := &b.stretches[at]
	b.kept -= len(r.seqs) - n
	r.seqs = r.seqs[:n]
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
	r := &b.stretches[at]
	r.list = uint32(uint64(r.due) % wheelSize)
	head := &b.wheel[r.list]
	r.prev, r.next = none, *head
	if *head != none {
		b.stretches[*head].prev = at
	}
	*head = at
}

// unlink takes a place out of its list.
func (b *beliefs) unlink(at uint32) {
	r := &b.stretches[at]
	if r.next != none {
		b.stretches[r.next].prev = r.prev
	}
	if r.prev != none {
		b.stretches[r.prev].next = r.next
	} else {
		b.wheel[r.list] = r.next
	}
}

// release gives a place back that is in no list. It keeps the memory of a short stretch for the next.
func (b *beliefs) release(at uint32) {
	r := &b.stretches[at]
	b.leave(b.slot(r.head))
	b.kept -= len(r.seqs)
	seqs := r.seqs[:0]
	if cap(seqs) > window {
		b.room -= cap(seqs)
		seqs = nil
	}
	*r = stretch{seqs: seqs, next: b.free}
	b.free = at
	b.used--
}

// refuted releases the stretches that are in seqs whole, in their order or against it. Others
// may follow them.
func (b *beliefs) refuted(seqs []kv.SeqHash) {
	for i, seq := range seqs {
		at := b.find(seq)
		if at == none {
			continue
		}
		if s := b.stretches[at].seqs; begins(seqs[i:], s) || endsTurned(seqs[:i+1], s) {
			b.unlink(at)
			b.release(at)
			b.gaps = true
		}
	}
}

// begins reports whether seqs begins with s.
func begins(seqs, s []kv.SeqHash) bool {
	return len(s) <= len(seqs) && slices.Equal(seqs[:len(s)], s)
}

// endsTurned reports whether seqs ends with s turned round.
func endsTurned(seqs, s []kv.SeqHash) bool {
	if len(s) > len(seqs) {
		return false
	}
	for i, seq := range s {
		if seqs[len(seqs)-1-i] != seq {
			return false
		}
	}
	return true
}

// find returns the place of the stretch that begins with seq, or none.
func (b *beliefs) find(seq kv.SeqHash) uint32 { return b.table[b.slot(seq)] - 1 } // 0 less 1 is none

// slot returns where the stretch that begins with seq is in the table, or where it would be entered.
func (b *beliefs) slot(seq kv.SeqHash) int {
	mask := len(b.table) - 1
	for i := b.home(seq); ; i = (i + 1) & mask {
		if p := b.table[i]; p == 0 || b.stretches[p-1].head == seq {
			return i
		}
	}
}

// home is where the search for seq begins.
func (b *beliefs) home(seq kv.SeqHash) int {
	high, _ := bits.Mul64(mix(seq, b.factor), uint64(len(b.table)))
	return int(high)
}

func (b *beliefs) enter(at uint32) { b.table[b.slot(b.stretches[at].head)] = at + 1 }

// leave empties a slot of the table and moves up those that it kept from their homes.
func (b *beliefs) leave(hole int) {
	mask := len(b.table) - 1
	for i := (hole + 1) & mask; b.table[i] != 0; i = (i + 1) & mask {
		if home := b.home(b.stretches[b.table[i]-1].head); (i-home)&mask >= (i-hole)&mask {
			b.table[hole] = b.table[i]
			hole = i
		}
	}
	b.table[hole] = 0
}

// all calls visit with the place of each stretch. visit may change the stretch's next.
func (b *beliefs) all(visit func(at uint32)) {
	for _, at := range b.wheel {
		for at != none {
			next := b.stretches[at].next
			visit(at)
			at = next
		}
	}
}

// grow rebuilds the table.
func (b *beliefs) grow(size int) {
	b.table = make([]uint32, size)
	b.all(b.enter)
}

// shrink gives memory back when three quarters of it are free.
func (b *beliefs) shrink() {
	if len(b.stretches) >= 64 && (4*b.used <= len(b.stretches) || 4*b.kept <= b.room) {
		b.rebuild(func(kv.SeqHash) bool { return true })
	}
}

// sweep leaves out the blocks that are not believed in.
func (b *beliefs) sweep(believed func(kv.SeqHash) bool) {
	b.rebuild(believed)
	b.gaps = true
}

// rebuild moves the blocks that stay into new memory of their size.
func (b *beliefs) rebuild(stays func(kv.SeqHash) bool) {
	old := *b
	*b = *newBeliefs(old.worker, old.factor)
	b.tells, b.gaps, b.live, b.counted = old.tells, old.gaps, old.live, old.counted
	size := len(b.table)
	for 3*size < 4*(old.used+1) {
		size *= 2
	}
	b.table, b.stretches = make([]uint32, size), make([]stretch, 0, old.used)
	old.all(func(at uint32) {
		r := &old.stretches[at]
		for i := 0; i < len(r.seqs); i++ {
			from := i
			for i < len(r.seqs) && stays(r.seqs[i]) {
				i++
			}
			if i > from {
				b.add(r.seqs[from:i], r.start+uint32(from), r.due)
			}
		}
	})
}

func (b *beliefs) bytes() int {
	return 8*b.room + int(unsafe.Sizeof(stretch{}))*cap(b.stretches) + 4*len(b.table) + 4*wheelSize
}

// check reports the first violated invariant: every place is in one list, of its own or an
// earlier time, or free, the table finds it, no block is in two stretches, and those that the
// worker has in the index are in one.
func (b *beliefs) check(last int64, indexed []Block) error {
	seen := make([]bool, len(b.stretches))
	in := map[kv.SeqHash]bool{}
	used, kept, room := 0, 0, 0
	for i, at := range b.wheel {
		for prev := none; at != none; prev, at = at, b.stretches[at].next {
			r := &b.stretches[at]
			switch {
			case seen[at]:
				return fmt.Errorf("prefix: check: worker %v has place %d in two lists", b.worker, at)
			case r.prev != prev || r.list != uint32(i):
				return fmt.Errorf("prefix: check: worker %v has place %d in list %d after %d; it says in %d after %d", b.worker, at, i, prev, r.list, r.prev)
			case len(r.seqs) == 0 || r.seqs[0] != r.head || b.find(r.head) != at:
				return fmt.Errorf("prefix: check: worker %v does not find the stretch of block %x", b.worker, uint64(r.head))
			case r.due <= last || r.due > last+wheelSize:
				return fmt.Errorf("prefix: check: worker %v has a stretch that expires at %d in list %d at %d", b.worker, r.due, i, last)
			}
			for _, seq := range r.seqs {
				if in[seq] {
					return fmt.Errorf("prefix: check: worker %v has block %x in two stretches", b.worker, uint64(seq))
				}
				in[seq] = true
			}
			seen[at] = true
			used++
			kept += len(r.seqs)
		}
	}
	for at := b.free; at != none; at = b.stretches[at].next {
		if seen[at] {
			return fmt.Errorf("prefix: check: worker %v has place %d free and in use", b.worker, at)
		}
		seen[at] = true
	}
	for i := range b.stretches {
		room += cap(b.stretches[i].seqs)
	}
	entered := 0
	for _, p := range b.table {
		if p != 0 {
			entered++
		}
	}
	if used != b.used || kept != b.kept || room != b.room || entered != used || 4*used > 3*len(b.table) {
		return fmt.Errorf("prefix: check: worker %v has %d places in use, %d blocks in room for %d, %d places in its table; it counts %d, %d and %d",
			b.worker, used, kept, room, entered, b.used, b.kept, b.room)
	}
	for _, block := range indexed {
		if !in[block.Seq] {
			return fmt.Errorf("prefix: check: worker %v has block %x in the index and in no stretch", b.worker, uint64(block.Seq))
		}
	}
	if len(indexed) != b.live || kept != b.counted {
		return fmt.Errorf("prefix: check: worker %v has %d blocks in the index and %d in stretches; %d and %d are counted", b.worker, len(indexed), kept, b.live, b.counted)
	}
	return nil
}
