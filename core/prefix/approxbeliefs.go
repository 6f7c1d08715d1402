package prefix

import (
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// wheelSize is the number of lists by expiry: more than the ticks from any moment to the latest expiry, so
// that no list has blocks of two ticks.
const wheelSize = 2 * ticksPerTTL

// noRun is no index of a run.
const none = ^uint32(0)

// workerEntries records until when one worker is predicted to hold the blocks in the index. Blocks of a
// prompt which expire together are a run: consecutive blocks of one prompt. A prompt which leaves another one
// in the middle of a run splits it. A run has an index, and table finds the index by the run's first block.
// The runs which may expire in one tick are a list. When a run is used again only its expiry is set; it moves
// to another list when its list is processed.
//
// Every block which the index has for the worker is in exactly one run. A run may also have blocks which are
// not in the index, because they were refuted or refused.
type beliefs struct {
	worker kv.Worker
	factor uint64 // see mixHash
	tells  bool   // the worker has reported cached blocks
	// hasGaps says that there may be runs whose first block follows a block which is in no run.
	gaps      bool
	stretches []stretch
	free      uint32   // list of free indexes
	used      int      // indexes in use
	kept      int      // blocks in runs
	room      int      // capacity of the runs' memory in blocks
	table     []uint32 // open addressing, linear, a power of two of slots: index+1, 0 if empty
	wheel     [wheelSize]uint32
	// indexed and counted are the blocks in the index and in runs at the last call of Approx.updateCounts.
	live, counted int
}

// expiryRun is consecutive blocks of one prompt, the first at position start.
type stretch struct {
	head  kv.SeqHash   // the first
	seqs  []kv.SeqHash // all; the run owns the memory
	due   int64        // tick at whose end they expire
	start uint32
	list  uint32 // in workerEntries.wheel
	// prev and next are the neighbours in the list; next also links workerEntries.free.
	prev, next uint32
}

func newBeliefs(w kv.Worker, factor uint64) *beliefs {
	b := &beliefs{worker: w, factor: factor, free: none, table: make([]uint32, 16)}
	for i := range b.wheel {
		b.wheel[i] = none
	}
	return b
}

// touchChain makes the blocks of a prompt expire at due, which is not before their present expiry, and
// returns how many leading ones were in runs.
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

// unknownPrefix returns how many leading blocks of chain, whose first is in no run, are in no run.
func (b *beliefs) unknown(chain []kv.SeqHash) int {
	n := 1
	if !b.gaps { // a worker with a block has all blocks before it
		return len(chain)
	}
	for n < len(chain) && b.find(chain[n]) == none {
		n++
	}
	return n
}

// commonPrefix returns how many leading blocks are equal.
func common(p, q []kv.SeqHash) int {
	n := 0
	for n < len(p) && n < len(q) && p[n] == q[n] {
		n++
	}
	return n
}

// addRun adds a run of blocks which are in no run, and returns its index.
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

// splitRun makes the blocks of a run after its first n a run of their own.
func (b *beliefs) divide(at uint32, n int) {
	r := b.stretches[at]
	b.kept -= len(r.seqs) - n
	b.stretches[at].seqs = r.seqs[:n]
	b.add(r.seqs[n:], r.start+uint32(n), r.due)
}

// cutRun keeps the first n blocks, at least one, of a run which is in no list.
func (b *beliefs) cut(at uint32, n int) {
	r := &b.stretches[at]
	b.kept -= len(r.seqs) - n
	r.seqs = r.seqs[:n]
}

// takeList returns the list of a tick, and empties it.
func (b *beliefs) take(tick int64) uint32 {
	head := &b.wheel[uint64(tick)%wheelSize]
	at := *head
	*head = none
	return at
}

// linkRun puts a run into the list of its expiry.
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

// unlinkRun takes a run out of its list.
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

// releaseRun frees a run which is in no list. The index keeps the memory of a short run for the next one.
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

// releaseRefuted releases the runs which are completely in seqs, in the same order or in reverse. Other runs
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

// hasPrefix reports whether seqs begins with s.
func begins(seqs, s []kv.SeqHash) bool {
	return len(s) <= len(seqs) && slices.Equal(seqs[:len(s)], s)
}

// hasReversedSuffix reports whether seqs ends with s reversed.
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

// findRun returns the index of the run whose first block is seq, or noRun.
func (b *beliefs) find(seq kv.SeqHash) uint32 { return b.table[b.slot(seq)] - 1 } // 0 less 1 is noRun

// slotOf returns the slot in the table of the run whose first block is seq, or the free slot where it
// belongs.
func (b *beliefs) slot(seq kv.SeqHash) int {
	mask := len(b.table) - 1
	for i := b.home(seq); ; i = (i + 1) & mask {
		if p := b.table[i]; p == 0 || b.stretches[p-1].head == seq {
			return i
		}
	}
}

// homeSlot is where the search for seq begins.
func (b *beliefs) home(seq kv.SeqHash) int {
	high, _ := bits.Mul64(mix(seq, b.factor), uint64(len(b.table)))
	return int(high)
}

func (b *beliefs) enter(at uint32) { b.table[b.slot(b.stretches[at].head)] = at + 1 }

// clearSlot empties a slot of the table and moves up the entries which it displaced.
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

// eachRun calls visit with the index of each run. visit may change the run's next.
func (b *beliefs) all(visit func(at uint32)) {
	for _, at := range b.wheel {
		for at != none {
			next := b.stretches[at].next
			visit(at)
			at = next
		}
	}
}

// growTable rebuilds the table.
func (b *beliefs) grow(size int) {
	b.table = make([]uint32, size)
	b.all(b.enter)
}

// shrinkMemory releases memory when three quarters of it are free.
func (b *beliefs) shrink() {
	if len(b.stretches) >= 64 && (4*b.used <= len(b.stretches) || 4*b.kept <= b.room) {
		b.rebuild(func(kv.SeqHash) bool { return true })
	}
}

// sweepBlocks removes the blocks which are not predicted.
func (b *beliefs) sweep(believed func(kv.SeqHash) bool) {
	b.rebuild(believed)
	b.gaps = true
}

// rebuildRuns moves the blocks which stay into new memory of the right size.
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

// checkRuns reports the first violated invariant: every index is either free or in one list, which is that of
// its expiry or of an earlier one; the table finds it; no block is in two runs; each block which the worker
// has in the index is in one.
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
