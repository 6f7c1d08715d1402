package main

import (
	"math/bits"
	"sync/atomic"

	"penstock/core/kv"
)

// bitmapTable is the baseline: the smallest structure which can hold the same facts. One open-addressing
// table, sized before the first store, has for each prefix its SeqHash and one bit per worker. A row of up to
// 256 workers is next to its key; larger rows are in an array, so that empty slots cost two words. The table
// is at most two thirds full.
//
// One writer may run beside readers: words are stored and loaded atomically, a key after its row. It is a
// lower bound and not a product: it has one tier, keeps keys after their last holder is removed, needs a full
// pass to remove a worker, cannot grow, and is unbounded.
type bitmapTable struct {
	words  int // of a row
	stride int // of a slot: the key, then the row or its index in rows
	slots  []uint64
	size   uint64 // in slots
	rows   []uint64
	used   int
}

// inlineWords is the longest row stored next to its key.
const inlineWords = 4

// newBitmapTable returns a table for prefixes distinct prefixes and workers workers.
func newBitmapTable(workers, prefixes int) *bitmapTable {
	t := &bitmapTable{words: (workers + 63) / 64, size: uint64(prefixes)*3/2 + 1}
	t.stride = 1 + t.words
	if t.words > inlineWords {
		t.stride = 2
		t.rows = make([]uint64, prefixes*t.words)
	}
	t.slots = make([]uint64, t.size*uint64(t.stride))
	return t
}

// bitmapBytes is the allocation of newBitmapTable.
func bitmapBytes(workers, prefixes int) int {
	words := (workers + 63) / 64
	if words > inlineWords {
		return 8 * (prefixes*words + prefixes*3)
	}
	return 8 * (prefixes * 3 / 2 * (1 + words))
}

// findSlot returns the slot of seq, or the free one where it belongs. A SeqHash is already a hash: its high
// bits choose the slot.
func (t *bitmapTable) findSlot(seq kv.SeqHash) (at int, found bool) {
	hi, _ := bits.Mul64(uint64(seq), t.size)
	at = int(hi) * t.stride
	for {
		switch atomic.LoadUint64(&t.slots[at]) {
		case uint64(seq):
			return at, true
		case 0:
			return at, false
		}
		if at += t.stride; at == len(t.slots) {
			at = 0
		}
	}
}

// rowAt returns the words of the slot at.
func (t *bitmapTable) rowAt(at int) []uint64 {
	if t.rows == nil {
		return t.slots[at+1 : at+t.stride]
	}
	from := int(t.slots[at+1])
	return t.rows[from : from+t.words]
}

// storeChain records that worker w holds the prefixes in chain.
func (t *bitmapTable) storeChain(w int, chain []kv.SeqHash) {
	for _, seq := range chain {
		at, found := t.findSlot(seq)
		if !found {
			t.used++
			if t.rows != nil {
				t.slots[at+1] = uint64((t.used - 1) * t.words)
			}
		}
		atomic.OrUint64(&t.rowAt(at)[w/64], 1<<(w%64))
		if !found {
			atomic.StoreUint64(&t.slots[at], uint64(seq))
		}
	}
}

// removeSeqs records that worker w no longer holds the prefixes in seqs.
func (t *bitmapTable) removeSeqs(w int, seqs []kv.SeqHash) {
	for _, seq := range seqs {
		if at, found := t.findSlot(seq); found {
			atomic.AndUint64(&t.rowAt(at)[w/64], ^uint64(1<<(w%64)))
		}
	}
}

// workerHolds reports whether worker w holds seq.
func (t *bitmapTable) workerHolds(w int, seq kv.SeqHash) bool {
	at, found := t.findSlot(seq)
	return found && t.rowAt(at)[w/64]>>(w%64)&1 != 0
}

// walkAnswer is the result of a walk: the sets of workers which hold exactly this many leading blocks,
// shallowest first, and its memory.
type walkAnswer struct {
	depths []int
	sets   []uint64 // a row for each of depths
	active []uint64
}

// walkChain checks block after block which workers hold it, until no worker which held all earlier blocks is
// left. It is exact for every worker whatever was removed.
func (t *bitmapTable) walkChain(a *walkAnswer, chain []kv.SeqHash) {
	a.depths, a.sets = a.depths[:0], a.sets[:0]
	if t.words == 1 {
		t.walkChainWord(a, chain)
		return
	}
	if a.active == nil {
		a.active = make([]uint64, t.words)
	}
	for i := range a.active {
		a.active[i] = ^uint64(0)
	}
	depth := 0
	for ; depth < len(chain); depth++ {
		at, found := t.findSlot(chain[depth])
		if !found {
			break
		}
		row := t.rowAt(at)
		var lost, left uint64
		for i, active := range a.active {
			still := active & atomic.LoadUint64(&row[i])
			lost |= active ^ still
			left |= still
		}
		if lost == 0 {
			continue
		}
		if depth > 0 {
			a.endRuns(depth, row)
		} else {
			for i := range a.active {
				a.active[i] = atomic.LoadUint64(&row[i])
			}
		}
		if left == 0 {
			return
		}
	}
	if depth > 0 {
		a.depths = append(a.depths, depth)
		a.sets = append(a.sets, a.active...)
	}
}

// endRuns ends the run of the active workers which are not in row.
func (a *walkAnswer) endRuns(depth int, row []uint64) {
	a.depths = append(a.depths, depth)
	for i, active := range a.active {
		still := active & atomic.LoadUint64(&row[i])
		a.sets = append(a.sets, active&^still)
		a.active[i] = still
	}
}

// walkChainWord is walkChain for up to 64 workers.
func (t *bitmapTable) walkChainWord(a *walkAnswer, chain []kv.SeqHash) {
	var active uint64
	depth := 0
	for ; depth < len(chain); depth++ {
		at, found := t.findSlot(chain[depth])
		if !found {
			break
		}
		row := atomic.LoadUint64(&t.slots[at+1])
		if depth == 0 {
			active = row
		}
		if still := active & row; still != active {
			a.depths, a.sets = append(a.depths, depth), append(a.sets, active&^still)
			active = still
		}
		if active == 0 {
			return
		}
	}
	if depth > 0 {
		a.depths, a.sets = append(a.depths, depth), append(a.sets, active)
	}
}

// deepestRun returns the depth of the deepest run.
func (a *walkAnswer) deepestRun() int {
	if len(a.depths) == 0 {
		return 0
	}
	return a.depths[len(a.depths)-1]
}

// gallopDepth returns how many leading blocks some worker holds, by doubling and then halving steps. That is
// the best worker's depth only while every worker which holds a block holds all before it, which evictions
// break; and it does not identify the worker.
func (t *bitmapTable) gallopDepth(chain []kv.SeqHash) int {
	held, beyond := 0, len(chain)+1
	for step := 1; held+step <= len(chain); step *= 2 {
		if !t.anyHolds(chain[held+step-1]) {
			beyond = held + step
			break
		}
		held += step
	}
	for held+1 < beyond {
		if mid := (held + beyond) / 2; t.anyHolds(chain[mid-1]) {
			held = mid
		} else {
			beyond = mid
		}
	}
	return held
}

// anyHolds reports whether some worker holds seq.
func (t *bitmapTable) anyHolds(seq kv.SeqHash) bool {
	at, found := t.findSlot(seq)
	if !found {
		return false
	}
	row := t.rowAt(at)
	for i := range row {
		if atomic.LoadUint64(&row[i]) != 0 {
			return true
		}
	}
	return false
}
