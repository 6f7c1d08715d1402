package enginefeed

import "penstock/core/kv"

// slab is a growing array whose elements never move, so that growing costs no copy and no
// second array beside the first.
type slab[T any] struct{ chunks []*[chunk]T }

const chunk = 1 << 10

// at returns element id, which the slab has.
func (s *slab[T]) at(id uint32) *T { return &s.chunks[id/chunk][id%chunk] }

// reach makes sure that the slab has element id, which is at most one past its last.
func (s *slab[T]) reach(id uint32) *T {
	if int(id/chunk) == len(s.chunks) {
		s.chunks = append(s.chunks, new([chunk]T))
	}
	return s.at(id)
}

// index gives names small numbers, which are used again once their name is gone. Numbers
// begin at 1. It is a table with linear probing, at most three quarters full.
type index struct {
	factor uint64
	slots  []uint32 // numbers, 0 where none is
	shift  uint
	names  slab[kv.EngineHash]
	free   []uint32
	top    uint32 // the largest number given
	n      int
}

func (x *index) home(name kv.EngineHash) int {
	h := (uint64(name) ^ uint64(name)>>32) * x.factor
	return int(h >> x.shift)
}

// find returns the number of name, 0 if it has none.
func (x *index) find(name kv.EngineHash) uint32 {
	if x.n == 0 {
		return 0
	}
	mask := len(x.slots) - 1
	for i := x.home(name); ; i = (i + 1) & mask {
		id := x.slots[i]
		if id == 0 || *x.names.at(id) == name {
			return id
		}
	}
}

// add gives name, which has none, a number.
func (x *index) add(name kv.EngineHash) uint32 {
	if 4*(x.n+1) > 3*len(x.slots) {
		x.grow()
	}
	var id uint32
	if k := len(x.free); k > 0 {
		id, x.free = x.free[k-1], x.free[:k-1]
	} else {
		x.top++
		id = x.top
		if id == 1 {
			x.names.reach(0)
		}
	}
	*x.names.reach(id) = name
	x.place(id)
	x.n++
	return id
}

func (x *index) place(id uint32) {
	mask := len(x.slots) - 1
	i := x.home(*x.names.at(id))
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = id
}

func (x *index) grow() {
	old := x.slots
	size := max(64, 2*len(old))
	x.slots = make([]uint32, size)
	x.shift = 64
	for s := size; s > 1; s >>= 1 {
		x.shift--
	}
	for _, id := range old {
		if id != 0 {
			x.place(id)
		}
	}
}

// drop takes its number from the name of id.
func (x *index) drop(id uint32) {
	mask := len(x.slots) - 1
	i := x.home(*x.names.at(id))
	for x.slots[i] != id {
		i = (i + 1) & mask
	}
	// Those behind move up unless that put them before their home.
	for j := i; ; {
		j = (j + 1) & mask
		next := x.slots[j]
		if next == 0 {
			break
		}
		if (j-x.home(*x.names.at(next)))&mask >= (j-i)&mask {
			x.slots[i] = next
			i = j
		}
	}
	x.slots[i] = 0
	x.free = append(x.free, id)
	x.n--
}

// clear takes all numbers away, and gives the memory back.
func (x *index) clear() { *x = index{factor: x.factor} }

// bytes returns what the index takes.
func (x *index) bytes() int {
	return 4*cap(x.slots) + 4*cap(x.free) + 8*chunk*len(x.names.chunks)
}
