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
const noRun = ^uint32(0)

// workerEntries records until when one worker is predicted to hold the blocks in the index. Blocks of a
// prompt which expire together are a run: consecutive blocks of one prompt. A prompt which leaves another one
// in the middle of a run splits it. A run has an index, and table finds the index by the run's first block.
// The runs which may expire in one tick are a list. When a run is used again only its expiry is set; it moves
// to another list when its list is processed.
//
// Every block which the index has for the worker is in exactly one run. A run may also have blocks which are
// not in the index, because they were refuted or refused.
type workerEntries struct {
	worker        kv.Worker
	factor        uint64 // see mixHash
	reportsCached bool   // the worker has reported cached blocks
	// hasGaps says that there may be runs whose first block follows a block which is in no run.
	hasGaps   bool
	runs      []expiryRun
	free      uint32   // list of free indexes
	used      int      // indexes in use
	runBlocks int      // blocks in runs
	capacity  int      // capacity of the runs' memory in blocks
	table     []uint32 // open addressing, linear, a power of two of slots: index+1, 0 if empty
	wheel     [wheelSize]uint32
	// indexed and counted are the blocks in the index and in runs at the last call of Approx.updateCounts.
	indexed, counted int
}

// expiryRun is consecutive blocks of one prompt, the first at position start.
type expiryRun struct {
	first kv.SeqHash   // the first
	seqs  []kv.SeqHash // all; the run owns the memory
	due   int64        // tick at whose end they expire
	start uint32
	list  uint32 // in workerEntries.wheel
	// prev and next are the neighbours in the list; next also links workerEntries.free.
	prev, next uint32
}

func newWorkerEntries(w kv.Worker, factor uint64) *workerEntries {
	b := &workerEntries{worker: w, factor: factor, free: noRun, table: make([]uint32, 16)}
	for i := range b.wheel {
		b.wheel[i] = noRun
	}
	return b
}

// touchChain makes the blocks of a prompt expire at due, which is not before their present expiry, and
// returns how many leading ones were in runs.
func (b *workerEntries) touchChain(chain []kv.SeqHash, due int64) (known int) {
	fresh := false
	for i := 0; i < len(chain); {
		at := b.findRun(chain[i])
		if at == noRun {
			n := b.unknownPrefix(chain[i:])
			b.addRun(chain[i:i+n], uint32(i), due)
			i += n
			fresh = true
			continue
		}
		n := commonPrefix(b.runs[at].seqs, chain[i:])
		if n < len(b.runs[at].seqs) && b.runs[at].due != due {
			b.splitRun(at, n)
		}
		b.runs[at].due = due
		i += n
		if !fresh {
			known = i
		}
	}
	return known
}

// unknownPrefix returns how many leading blocks of chain, whose first is in no run, are in no run.
func (b *workerEntries) unknownPrefix(chain []kv.SeqHash) int {
	n := 1
	if !b.hasGaps { // a worker with a block has all blocks before it
		return len(chain)
	}
	for n < len(chain) && b.findRun(chain[n]) == noRun {
		n++
	}
	return n
}

// commonPrefix returns how many leading blocks are equal.
func commonPrefix(p, q []kv.SeqHash) int {
	n := 0
	for n < len(p) && n < len(q) && p[n] == q[n] {
		n++
	}
	return n
}

// addRun adds a run of blocks which are in no run, and returns its index.
func (b *workerEntries) addRun(seqs []kv.SeqHash, start uint32, due int64) uint32 {
	at := b.free
	if at != noRun {
		b.free = b.runs[at].next
	} else {
		at = uint32(len(b.runs))
		b.runs = append(b.runs, expiryRun{})
	}
	r := &b.runs[at]
	b.capacity -= cap(r.seqs)
	r.seqs = append(r.seqs[:0], seqs...)
	b.capacity += cap(r.seqs)
	r.first, r.due, r.start = seqs[0], due, start
	b.linkRun(at)
	b.runBlocks += len(seqs)
	b.used++
	if 4*b.used > 3*len(b.table) {
		b.growTable(2 * len(b.table))
	} else {
		b.fillSlot(at)
	}
	return at
}

// splitRun makes the blocks of a run after its first n a run of their own.
func (b *workerEntries) splitRun(at uint32, n int) {
	r := b.runs[at]
	b.runBlocks -= len(r.seqs) - n
	b.runs[at].seqs = r.seqs[:n]
	b.addRun(r.seqs[n:], r.start+uint32(n), r.due)
}

// cutRun keeps the first n blocks, at least one, of a run which is in no list.
func (b *workerEntries) cutRun(at uint32, n int) {
	r := &b.runs[at]
	b.runBlocks -= len(r.seqs) - n
	r.seqs = r.seqs[:n]
}

// takeList returns the list of a tick, and empties it.
func (b *workerEntries) takeList(tick int64) uint32 {
	head := &b.wheel[uint64(tick)%wheelSize]
	at := *head
	*head = noRun
	return at
}

// linkRun puts a run into the list of its expiry.
func (b *workerEntries) linkRun(at uint32) {
	r := &b.runs[at]
	r.list = uint32(uint64(r.due) % wheelSize)
	head := &b.wheel[r.list]
	r.prev, r.next = noRun, *head
	if *head != noRun {
		b.runs[*head].prev = at
	}
	*head = at
}

// unlinkRun takes a run out of its list.
func (b *workerEntries) unlinkRun(at uint32) {
	r := &b.runs[at]
	if r.next != noRun {
		b.runs[r.next].prev = r.prev
	}
	if r.prev != noRun {
		b.runs[r.prev].next = r.next
	} else {
		b.wheel[r.list] = r.next
	}
}

// releaseRun frees a run which is in no list. The index keeps the memory of a short run for the next one.
func (b *workerEntries) releaseRun(at uint32) {
	r := &b.runs[at]
	b.clearSlot(b.slotOf(r.first))
	b.runBlocks -= len(r.seqs)
	seqs := r.seqs[:0]
	if cap(seqs) > window {
		b.capacity -= cap(seqs)
		seqs = nil
	}
	*r = expiryRun{seqs: seqs, next: b.free}
	b.free = at
	b.used--
}

// releaseRefuted releases the runs which are completely in seqs, in the same order or in reverse. Other runs
// may follow them.
func (b *workerEntries) releaseRefuted(seqs []kv.SeqHash) {
	for i, seq := range seqs {
		at := b.findRun(seq)
		if at == noRun {
			continue
		}
		if s := b.runs[at].seqs; hasPrefix(seqs[i:], s) || hasReversedSuffix(seqs[:i+1], s) {
			b.unlinkRun(at)
			b.releaseRun(at)
			b.hasGaps = true
		}
	}
}

// hasPrefix reports whether seqs begins with s.
func hasPrefix(seqs, s []kv.SeqHash) bool {
	return len(s) <= len(seqs) && slices.Equal(seqs[:len(s)], s)
}

// hasReversedSuffix reports whether seqs ends with s reversed.
func hasReversedSuffix(seqs, s []kv.SeqHash) bool {
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
func (b *workerEntries) findRun(seq kv.SeqHash) uint32 { return b.table[b.slotOf(seq)] - 1 } // 0 less 1 is noRun

// slotOf returns the slot in the table of the run whose first block is seq, or the free slot where it
// belongs.
func (b *workerEntries) slotOf(seq kv.SeqHash) int {
	mask := len(b.table) - 1
	for i := b.homeSlot(seq); ; i = (i + 1) & mask {
		if p := b.table[i]; p == 0 || b.runs[p-1].first == seq {
			return i
		}
	}
}

// homeSlot is where the search for seq begins.
func (b *workerEntries) homeSlot(seq kv.SeqHash) int {
	high, _ := bits.Mul64(mixHash(seq, b.factor), uint64(len(b.table)))
	return int(high)
}

func (b *workerEntries) fillSlot(at uint32) { b.table[b.slotOf(b.runs[at].first)] = at + 1 }

// clearSlot empties a slot of the table and moves up the entries which it displaced.
func (b *workerEntries) clearSlot(hole int) {
	mask := len(b.table) - 1
	for i := (hole + 1) & mask; b.table[i] != 0; i = (i + 1) & mask {
		if home := b.homeSlot(b.runs[b.table[i]-1].first); (i-home)&mask >= (i-hole)&mask {
			b.table[hole] = b.table[i]
			hole = i
		}
	}
	b.table[hole] = 0
}

// eachRun calls visit with the index of each run. visit may change the run's next.
func (b *workerEntries) eachRun(visit func(at uint32)) {
	for _, at := range b.wheel {
		for at != noRun {
			next := b.runs[at].next
			visit(at)
			at = next
		}
	}
}

// growTable rebuilds the table.
func (b *workerEntries) growTable(size int) {
	b.table = make([]uint32, size)
	b.eachRun(b.fillSlot)
}

// shrinkMemory releases memory when three quarters of it are free.
func (b *workerEntries) shrinkMemory() {
	if len(b.runs) >= 64 && (4*b.used <= len(b.runs) || 4*b.runBlocks <= b.capacity) {
		b.rebuildRuns(func(kv.SeqHash) bool { return true })
	}
}

// sweepBlocks removes the blocks which are not predicted.
func (b *workerEntries) sweepBlocks(believed func(kv.SeqHash) bool) {
	b.rebuildRuns(believed)
	b.hasGaps = true
}

// rebuildRuns moves the blocks which stay into new memory of the right size.
func (b *workerEntries) rebuildRuns(stays func(kv.SeqHash) bool) {
	old := *b
	*b = *newWorkerEntries(old.worker, old.factor)
	b.reportsCached, b.hasGaps, b.indexed, b.counted = old.reportsCached, old.hasGaps, old.indexed, old.counted
	size := len(b.table)
	for 3*size < 4*(old.used+1) {
		size *= 2
	}
	b.table, b.runs = make([]uint32, size), make([]expiryRun, 0, old.used)
	old.eachRun(func(at uint32) {
		r := &old.runs[at]
		for i := 0; i < len(r.seqs); i++ {
			from := i
			for i < len(r.seqs) && stays(r.seqs[i]) {
				i++
			}
			if i > from {
				b.addRun(r.seqs[from:i], r.start+uint32(from), r.due)
			}
		}
	})
}

func (b *workerEntries) memoryBytes() int {
	return 8*b.capacity + int(unsafe.Sizeof(expiryRun{}))*cap(b.runs) + 4*len(b.table) + 4*wheelSize
}

// checkRuns reports the first violated invariant: every index is either free or in one list, which is that of
// its expiry or of an earlier one; the table finds it; no block is in two runs; each block which the worker
// has in the index is in one.
func (b *workerEntries) checkRuns(last int64, indexed []Block) error {
	seen := make([]bool, len(b.runs))
	in := map[kv.SeqHash]bool{}
	used, kept, room := 0, 0, 0
	for i, at := range b.wheel {
		for prev := noRun; at != noRun; prev, at = at, b.runs[at].next {
			r := &b.runs[at]
			switch {
			case seen[at]:
				return fmt.Errorf("prefix: check: worker %v has place %d in two lists", b.worker, at)
			case r.prev != prev || r.list != uint32(i):
				return fmt.Errorf("prefix: check: worker %v has place %d in list %d after %d; it says in %d after %d", b.worker, at, i, prev, r.list, r.prev)
			case len(r.seqs) == 0 || r.seqs[0] != r.first || b.findRun(r.first) != at:
				return fmt.Errorf("prefix: check: worker %v does not find the stretch of block %x", b.worker, uint64(r.first))
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
	for at := b.free; at != noRun; at = b.runs[at].next {
		if seen[at] {
			return fmt.Errorf("prefix: check: worker %v has place %d free and in use", b.worker, at)
		}
		seen[at] = true
	}
	for i := range b.runs {
		room += cap(b.runs[i].seqs)
	}
	entered := 0
	for _, p := range b.table {
		if p != 0 {
			entered++
		}
	}
	if used != b.used || kept != b.runBlocks || room != b.capacity || entered != used || 4*used > 3*len(b.table) {
		return fmt.Errorf("prefix: check: worker %v has %d places in use, %d blocks in room for %d, %d places in its table; it counts %d, %d and %d",
			b.worker, used, kept, room, entered, b.used, b.runBlocks, b.capacity)
	}
	for _, block := range indexed {
		if !in[block.Seq] {
			return fmt.Errorf("prefix: check: worker %v has block %x in the index and in no stretch", b.worker, uint64(block.Seq))
		}
	}
	if len(indexed) != b.indexed || kept != b.counted {
		return fmt.Errorf("prefix: check: worker %v has %d blocks in the index and %d in stretches; %d and %d are counted", b.worker, len(indexed), kept, b.indexed, b.counted)
	}
	return nil
}
