package embcache

import "math/bits"

// Unit is the granularity of slots in bytes: a cache line, and the largest alignment of elements.
const Unit = 64

// none is the index of no segment.
const none = -1

// classesPerDoubling is the number of size classes for each power of two.
const (
	classBits          = 3
	classesPerDoubling = 1 << classBits
	classCount         = 64 * classesPerDoubling
)

// region allocates segments of one region of memory. Free segments are in lists by size class.
type region struct {
	size int // bytes
	// segments cover the region without gaps; the first one is segments[0].
	segments []segment
	unused   []int32 // of segments
	heads    [classCount]int32
	present  [classCount / 64]uint64 // classes whose list is not empty
}

// segment is a piece of the region, free or not.
type segment struct {
	offset, size  int
	before, after int32 // neighbours in the region
	prev, next    int32 // in the list of a class, if it is free
	free          bool
	owner         int32 // index of the entry which has it, if it is not free
}

// reset makes the region one free segment.
func (r *region) reset(size int) {
	*r = region{size: size}
	for i := range r.heads {
		r.heads[i] = none
	}
	if size > 0 {
		r.segments = append(r.segments, segment{size: size, before: none, after: none})
		r.linkFree(0)
	}
}

// roundUp returns the size of the slot for so many bytes.
func roundUp(size int) int { return (max(size, 1) + Unit - 1) / Unit * Unit }

// classOf returns the class of a segment's size. The sizes of a class differ by less than one eighth.
func classOf(size int) int {
	n := uint(size / Unit)
	if n < classesPerDoubling {
		return int(n)
	}
	shift := bits.Len(n) - 1 - classBits
	return (shift+1)<<classBits | int(n>>shift)&(classesPerDoubling-1)
}

// allocate returns a segment for size bytes, which are not more than the region has, if a free one is large
// enough.
func (r *region) allocate(size int) (int32, bool) {
	size = roundUp(size)
	i := r.findFree(size)
	if i == none {
		return none, false
	}
	r.unlinkFree(i)
	if rest := r.segments[i].size - size; rest > 0 {
		j := takeIndex(&r.segments, &r.unused)
		s := &r.segments[i]
		r.segments[j] = segment{offset: s.offset + size, size: rest, before: i, after: s.after}
		if s.after != none {
			r.segments[s.after].before = j
		}
		s.size, s.after = size, j
		r.linkFree(j)
	}
	return i, true
}

// findFree returns the first free segment of size's class that is large enough, or the first of the next class
// that has one.
func (r *region) findFree(size int) int32 {
	class := classOf(size)
	for i := r.heads[class]; i != none; i = r.segments[i].next {
		if r.segments[i].size >= size {
			return i
		}
	}
	if class = r.nextClass(class + 1); class < classCount {
		return r.heads[class]
	}
	return none
}

// nextClass returns the first class from one on whose list is not empty; classCount if there is none.
func (r *region) nextClass(class int) int {
	for word := class / 64; word < len(r.present); word++ {
		set := r.present[word]
		if word == class/64 {
			set &= ^uint64(0) << (class % 64)
		}
		if set != 0 {
			return word*64 + bits.TrailingZeros64(set)
		}
	}
	return classCount
}

// release frees a segment and joins it with free neighbours.
func (r *region) release(i int32) {
	if j := r.segments[i].after; j != none && r.segments[j].free {
		r.unlinkFree(j)
		r.join(i, j)
	}
	if j := r.segments[i].before; j != none && r.segments[j].free {
		r.unlinkFree(j)
		r.join(j, i)
		i = j
	}
	r.linkFree(i)
}

// join appends segment j to i, which is before it.
func (r *region) join(i, j int32) {
	s, t := &r.segments[i], &r.segments[j]
	s.size, s.after = s.size+t.size, t.after
	if t.after != none {
		r.segments[t.after].before = i
	}
	*t = segment{}
	r.unused = append(r.unused, j)
}

// takeIndex returns the index of an unused element of a table, which grows if there is none.
func takeIndex[T any](table *[]T, unused *[]int32) int32 {
	if n := len(*unused); n > 0 {
		i := (*unused)[n-1]
		*unused = (*unused)[:n-1]
		return i
	}
	*table = append(*table, *new(T))
	return int32(len(*table) - 1)
}

func (r *region) linkFree(i int32) {
	s := &r.segments[i]
	class := classOf(s.size)
	s.free, s.owner, s.prev, s.next = true, none, none, r.heads[class]
	if s.next != none {
		r.segments[s.next].prev = i
	}
	r.heads[class] = i
	r.present[class/64] |= 1 << (class % 64)
}

func (r *region) unlinkFree(i int32) {
	s := &r.segments[i]
	class := classOf(s.size)
	if s.prev == none {
		r.heads[class] = s.next
	} else {
		r.segments[s.prev].next = s.next
	}
	if s.next != none {
		r.segments[s.next].prev = s.prev
	}
	if r.heads[class] == none {
		r.present[class/64] &^= 1 << (class % 64)
	}
	s.free = false
}

// longestRun returns the size of the longest run of adjacent segments that are free or whose owners are
// freeable, in bytes.
func (r *region) longestRun(freeable func(owner int32) bool) int {
	if len(r.segments) == 0 {
		return 0
	}
	longest, run := 0, 0
	for i := int32(0); i != none; i = r.segments[i].after {
		s := &r.segments[i]
		if s.free || freeable(s.owner) {
			run += s.size
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	return longest
}

// largestFree returns the size of a free segment of the largest class that has one.
func (r *region) largestFree() int {
	for word := len(r.present) - 1; word >= 0; word-- {
		if set := r.present[word]; set != 0 {
			return r.segments[r.heads[word*64+bits.Len64(set)-1]].size
		}
	}
	return 0
}
