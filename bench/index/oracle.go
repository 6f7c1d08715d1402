package main

import (
	"slices"

	"penstock/core/kv"
)

// holderOracle is the truth by brute force: for each prefix the sorted list of its holders. It shares no code
// with either index.
type holderOracle struct {
	ids     map[kv.SeqHash]int32
	holders [][]uint32
	entries int
}

func newHolderOracle(prefixes int) *holderOracle {
	return &holderOracle{ids: make(map[kv.SeqHash]int32, prefixes)}
}

// addHolder records that w holds seq and reports whether that is new.
func (o *holderOracle) addHolder(w int, seq kv.SeqHash) bool {
	id, ok := o.ids[seq]
	if !ok {
		id = int32(len(o.holders))
		o.ids[seq] = id
		o.holders = append(o.holders, nil)
	}
	at, found := slices.BinarySearch(o.holders[id], uint32(w))
	if found {
		return false
	}
	o.holders[id] = slices.Insert(o.holders[id], at, uint32(w))
	o.entries++
	return true
}

// removeHolder records that w does not hold seq and reports whether that is new.
func (o *holderOracle) removeHolder(w int, seq kv.SeqHash) bool {
	id, ok := o.ids[seq]
	if !ok {
		return false
	}
	at, found := slices.BinarySearch(o.holders[id], uint32(w))
	if !found {
		return false
	}
	o.holders[id] = slices.Delete(o.holders[id], at, at+1)
	o.entries--
	return true
}

// holderDepth is a worker and how many leading blocks it holds.
type holderDepth struct {
	worker uint32
	depth  int
}

// matchHolders appends, ordered by worker, each holder of the first block and its depth.
func (o *holderOracle) matchHolders(dst []holderDepth, chain []kv.SeqHash) []holderDepth {
	base := len(dst)
	for depth, seq := range chain {
		id, ok := o.ids[seq]
		if !ok {
			break
		}
		if depth == 0 {
			for _, w := range o.holders[id] {
				dst = append(dst, holderDepth{w, 1})
			}
			continue
		}
		on := 0
		for i := range dst[base:] {
			h := &dst[base+i]
			if h.depth < depth {
				continue
			}
			if _, found := slices.BinarySearch(o.holders[id], h.worker); found {
				h.depth++
				on++
			}
		}
		if on == 0 {
			break
		}
	}
	return dst
}
