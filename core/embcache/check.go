package embcache

import (
	"fmt"
	"slices"
)

// Check returns an error if an invariant does not hold: the segments cover the region, no two free ones are
// adjacent, each list and table has what it should, and the statistics are the sums over the entries.
func (c *RowCache) Check() error {
	if err := c.region.check(); err != nil {
		return err
	}
	var sum Stats
	unpinned, ending := 0, 0
	for i := range c.entries {
		e := &c.entries[i]
		if e.state == unusedEntry {
			continue
		}
		s := &c.region.segments[e.segment]
		if s.free || s.owner != int32(i) || s.size != roundUp(e.item.Bytes) {
			return fmt.Errorf("embcache: entry %d of %d bytes has segment %+v", i, e.item.Bytes, *s)
		}
		if e.pins == 0 && e.state != readable || e.pins < 0 {
			return fmt.Errorf("embcache: entry %d has %d pins in state %d", i, e.pins, e.state)
		}
		if e.pins > 0 {
			sum.PinnedBytes += s.size
		}
		at, found := c.byKey[e.item.Key]
		if found = found && at == int32(i); found != (e.state == readable) {
			return fmt.Errorf("embcache: entry %d in state %d is found: %t", i, e.state, found)
		}
		if e.state != readable {
			sum.HeldBytes += s.size
			continue
		}
		sum.Entries++
		sum.Bytes += s.size
		if e.pins == 0 {
			unpinned++
		}
		if e.item.Until != 0 {
			ending++
		}
	}
	if got := c.stats; got.Entries != sum.Entries || got.Bytes != sum.Bytes || got.HeldBytes != sum.HeldBytes || got.PinnedBytes != sum.PinnedBytes {
		return fmt.Errorf("embcache: statistics %+v, the entries are %+v", got, sum)
	}
	if used := c.region.size - c.region.sumFree(); used != sum.Bytes+sum.HeldBytes {
		return fmt.Errorf("embcache: %d bytes of the region are used, the entries have %d", used, sum.Bytes+sum.HeldBytes)
	}
	if len(c.byKey) != sum.Entries || len(c.ending) != ending || !slices.IsSortedFunc(c.ending, c.compareEnds) {
		return fmt.Errorf("embcache: %d keys of %d entries, %d ends of %d", len(c.byKey), sum.Entries, len(c.ending), ending)
	}
	return c.checkRing(unpinned)
}

// checkRing checks the ring by last use, which must have n entries.
func (c *RowCache) checkRing(n int) error {
	last := int32(0)
	for i := c.entries[0].newer; i != 0; last, i = i, c.entries[i].newer {
		e := &c.entries[i]
		if n--; n < 0 || e.older != last || e.state != readable || e.pins != 0 {
			return fmt.Errorf("embcache: entry %d, with %d pins and in state %d, is behind %d in the ring", i, e.pins, e.state, last)
		}
	}
	if n != 0 || last != c.entries[0].older {
		return fmt.Errorf("embcache: the ring ends %d entries early, with %d in place of %d", n, last, c.entries[0].older)
	}
	return nil
}

func (r *region) sumFree() (n int) {
	for i := range r.segments {
		if r.segments[i].free {
			n += r.segments[i].size
		}
	}
	return n
}

func (r *region) check() error {
	offset, free, count := 0, 0, 0
	last := int32(none)
	for i := int32(none); len(r.segments) > 0; {
		if i == none {
			i = 0
		} else if i = r.segments[i].after; i == none {
			break
		}
		s := &r.segments[i]
		if s.offset != offset || s.before != last || s.size <= 0 || s.size%Unit != 0 {
			return fmt.Errorf("embcache: segment %+v behind %d ends at %d", *s, last, offset)
		}
		if s.free {
			if last != none && r.segments[last].free {
				return fmt.Errorf("embcache: segments at %d are free and not joined", offset)
			}
			free++
		}
		offset, last, count = offset+s.size, i, count+1
	}
	if offset != r.size || count+len(r.unused) != len(r.segments) {
		return fmt.Errorf("embcache: %d segments cover %d bytes of %d", count, offset, r.size)
	}
	for class, i := range r.heads {
		if (i != none) != (r.present[class/64]>>(class%64)&1 != 0) {
			return fmt.Errorf("embcache: class %d starts with %d", class, i)
		}
		for prev := int32(none); i != none; prev, i = i, r.segments[i].next {
			s := &r.segments[i]
			if free--; free < 0 || !s.free || classOf(s.size) != class || s.prev != prev {
				return fmt.Errorf("embcache: segment %+v is in class %d behind %d", *s, class, prev)
			}
		}
	}
	if free != 0 {
		return fmt.Errorf("embcache: %d free segments are in no class", free)
	}
	return nil
}
