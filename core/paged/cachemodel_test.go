package paged

import (
	"fmt"

	"penstock/core/kv"
)

// cacheModel is a model of the KV cache which records, for every slot, from which prefix its K and V were
// computed. It computes batches like a model would, and reports every read of K and V which are not the
// sequence's own.
type cacheModel struct {
	size  int
	slots map[[2]int32]int // block and slot -> prefix
	ids   map[prefix]int   // every distinct prefix has a number, from 1
}

// prefix is the previous prefix, and what its last position adds.
type prefix struct {
	before int
	token  kv.Token
	shown  string // the media rows that the position shows; before the first, the salt
}

func newShadow(size int) *cacheModel {
	return &cacheModel{size: size, slots: map[[2]int32]int{}, ids: map[prefix]int{}}
}

func (m *cacheModel) id(p prefix) int {
	if m.ids[p] == 0 {
		m.ids[p] = len(m.ids) + 1
	}
	return m.ids[p]
}

// prefixes numbers each prefix of a sequence.
func (m *cacheModel) prefixes(salt kv.Salt, tokens []kv.Token, media []kv.Media) []int {
	ids := make([]int, len(tokens))
	before := m.id(prefix{shown: fmt.Sprintf("%q", salt)})
	for p, t := range tokens {
		shown := ""
		for _, x := range canonicalMedia(media) {
			if x.Start <= p && p < x.End {
				shown += fmt.Sprint(x.Hash, p-x.Start, x.End-p)
			}
		}
		before = m.id(prefix{before: before, token: t, shown: shown})
		ids[p] = before
	}
	return ids
}

// compute reads and then writes what work says, for a whole batch. of returns the prefixes of a sequence,
// or says that it was removed since the batch was planned.
func (m *cacheModel) compute(work []Work, of func(SeqID) (ids []int, gone bool)) error {
	tables := map[int32]int{}
	for _, w := range work {
		for p := w.Start - w.Fetched; p < w.Start; p++ {
			if ids, gone := of(w.ID); !gone {
				m.slots[m.at(w, p)] = ids[p]
			}
		}
	}
	for _, w := range work {
		for _, b := range w.Blocks {
			tables[b]++
		}
		ids, gone := of(w.ID)
		if gone {
			continue
		}
		if want := (w.Start + len(w.Tokens) + m.size - 1) / m.size; len(w.Blocks) != want {
			return fmt.Errorf("sequence %d: table of %d blocks, want %d", w.ID, len(w.Blocks), want)
		}
		for p := range w.Start {
			if at := m.at(w, p); m.slots[at] != ids[p] {
				return fmt.Errorf("sequence %d: position %d in slot %v holds the K and V of another prefix", w.ID, p, at)
			}
		}
	}
	for _, w := range work {
		ids, gone := of(w.ID)
		for p := w.Start; p < w.Start+len(w.Tokens); p++ {
			at := m.at(w, p)
			if !gone && tables[at[0]] != 1 {
				return fmt.Errorf("sequence %d: position %d is written to block %d, which others hold", w.ID, p, at[0])
			}
			if gone {
				delete(m.slots, at) // it must not be read
				continue
			}
			m.slots[at] = ids[p]
		}
	}
	return nil
}

func (m *cacheModel) at(w Work, p int) [2]int32 {
	return [2]int32{w.Blocks[p/m.size], int32(p % m.size)}
}
