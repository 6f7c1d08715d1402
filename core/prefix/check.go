package prefix

import (
	"fmt"
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// Check reports the first violated invariant: each page is in its table, begins and ends with a held block,
// and is found by its head; blocks finds each of its blocks; groups are disjoint and different; workers and
// pools know their pages; spans consist of whole pages, and state correctly how many of them are held alike;
// counts are correct. It takes time proportional to the index, and is for tests.
func (x *Index) Check() error {
	c := checker{
		x: x, held: make([]int, len(x.workers)), in: make([]int, len(x.workers)),
		pooled: make([]int, len(x.pools)), pages: make([]int, len(x.pools)),
	}
	for _, step := range []func() error{c.checkNumbers, c.checkPages, c.checkHolders, c.checkTables} {
		if err := step(); err != nil {
			return fmt.Errorf("prefix: check: %w", err)
		}
	}
	return nil
}

type checker struct {
	x             *Index
	size          sizeCounts
	found, spans  int
	held, in      []int // by worker: blocks and pages
	pooled, pages []int // by pool
}

func (c *checker) checkNumbers() error {
	x, v := c.x, c.x.view.Load()
	if got, want := len(x.numbers)+len(x.freeNumbers), len(x.workers); got != want {
		return fmt.Errorf("%d numbers in use or vacant of %d", got, want)
	}
	if len(v.order) != len(x.numbers) || len(v.names) != len(x.workers) || len(v.rank) != len(x.workers) {
		return fmt.Errorf("the view has %d workers of %d", len(v.order), len(x.numbers))
	}
	for i, n := range v.order {
		w := x.workers[n]
		if !w.known || v.names[n] != w.id || x.numbers[w.id] != n || int(v.rank[n]) != i {
			return fmt.Errorf("number %d is not that of worker %v", n, w.id)
		}
		if i > 0 && v.names[v.order[i-1]].Compare(w.id) >= 0 {
			return fmt.Errorf("workers do not ascend at %v", w.id)
		}
		if visible := v.visible[n/64]>>(n%64)&1 != 0; visible == w.hidden {
			return fmt.Errorf("worker %v: hidden %t and visible %t", w.id, w.hidden, visible)
		}
	}
	if got, want := len(x.poolNumbers)+len(x.freePools), len(x.pools); got != want || len(v.access) != want {
		return fmt.Errorf("%d pools in use or free of %d, %d in the view", got, want, len(v.access))
	}
	for i := range x.pools {
		if err := c.checkAccess(uint32(i), &v.access[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) checkAccess(i uint32, workers *numberSet) error {
	p, n := c.x.pools[i], 0
	if at, ok := c.x.poolNumbers[p.id]; p.known && (!ok || at != i) {
		return fmt.Errorf("pool %d is not at %d", p.id, i)
	}
	for _, w := range p.access {
		if number, ok := c.x.numbers[w]; ok {
			n++
			if !workers.contains(number) {
				return fmt.Errorf("pool %d: worker %v has no access in the view", p.id, w)
			}
		}
	}
	if n != workers.size() {
		return fmt.Errorf("pool %d: %d workers have access, %d in the view", p.id, n, workers.size())
	}
	return nil
}

func (c *checker) checkPages() error {
	x := c.x
	for at, chunk := range x.pages.chunks {
		if chunk == nil {
			continue
		}
		live := 0
		for i, v := range chunk.versions {
			id := uint32(at*chunkPages + i)
			if taken := chunk.taken[i/64]>>(i%64)&1 != 0; taken != (v != nil || id == 0) {
				return fmt.Errorf("page %d: taken is %t", id, taken)
			}
			if v == nil {
				continue
			}
			live++
			if err := c.checkPage(id, v); err != nil {
				return fmt.Errorf("page %d: %w", id, err)
			}
		}
		if live != chunk.live {
			return fmt.Errorf("chunk %d counts %d pages of %d", at, chunk.live, live)
		}
	}
	return nil
}

func (c *checker) checkPage(id uint32, v *pageVersion) error {
	x, n := c.x, int(v.count)
	if n == 0 || int(v.start)+n > window || len(v.hashes) < n {
		return fmt.Errorf("blocks %d to %d, %d hashes", v.start, int(v.start)+n, len(v.hashes))
	}
	if v.head != v.hashes[0] || v.last != v.hashes[n-1] || x.heads.findPage(v.head) != v {
		return fmt.Errorf("it is not found by its head")
	}
	for i, seq := range v.hashes[:n] {
		want := blockLocation{id, v.start + uint8(i)}
		if at, ok := x.locateBlock(seq); !ok || at != want {
			return fmt.Errorf("block %x is at %v, not %v", uint64(seq), at, want)
		}
	}
	held := uint64(0)
	v.eachGroup(func(g *holderGroup) { held |= g.onAnyTier() })
	for _, p := range v.pools() {
		held |= p.mask
	}
	if held != v.heldMask {
		return fmt.Errorf("held are %x, it says %x", held, v.heldMask)
	}
	if all := maskOf(int(v.start), n); held&^all != 0 || held>>v.start&1 == 0 || held>>(int(v.start)+n-1)&1 == 0 {
		return fmt.Errorf("held are %x of %x", held, all)
	}
	c.found += n
	c.size.replaceVersion(nil, v)
	if err := c.checkSpan(id, v); err != nil {
		return err
	}
	return c.checkGroups(id, v)
}

// checkSpan compares the span of page id, and what the page says of the span if it is the first, with the
// pages.
func (c *checker) checkSpan(id uint32, v *pageVersion) error {
	x, s := c.x, c.x.pages.spanOf(id)
	if s == nil || s.pages[0] != id {
		if v.span != 0 || v.lasts != nil {
			return fmt.Errorf("it speaks of %d pages and is not the first of a span", v.span)
		}
		if s != nil && !slices.Contains(s.pages[:s.pageCount()], id) {
			return fmt.Errorf("its span is without it")
		}
		return nil
	}
	c.spans++
	n := s.pageCount()
	for i, other := range s.pages {
		if i < n && x.pages.spanOf(other) != s || i >= n && other != 0 {
			return fmt.Errorf("page %d of its span is not in it", i)
		}
		if i < n-1 && !x.pages.pageAt(other).isWhole() {
			return fmt.Errorf("page %d of its span is no whole window", i)
		}
	}
	if want := x.alikePages(s); n < 2 || s.stale || int(v.span) != want || (v.lasts != nil) != (want > 0) {
		return fmt.Errorf("it speaks of %d pages of %d, %d are alike", v.span, n, want)
	}
	for i, other := range s.pages[:v.span] {
		if x.pages.pageAt(other).last != v.lasts[i] {
			return fmt.Errorf("the last block of page %d of its span is another", i)
		}
	}
	return nil
}

func (c *checker) checkGroups(id uint32, v *pageVersion) (err error) {
	var seen []*holderGroup
	v.eachGroup(func(g *holderGroup) {
		for _, other := range seen {
			if other.holdsSame(g) {
				err = fmt.Errorf("two groups hold the same")
			}
			for i := int(g.set.lo); i < g.set.endWord(); i++ {
				if g.set.wordAt(i)&other.set.wordAt(i) != 0 {
					err = fmt.Errorf("a worker is in two groups")
				}
			}
		}
		seen = append(seen, g)
		if g.onAnyTier() == 0 || g.set.one == 0 || g.ext != nil && g.ext.check(g.onAnyTier()) != nil {
			err = fmt.Errorf("a group is empty or has bad labels")
		}
		for n := range g.set.eachNumber() {
			if int(n) >= len(c.held) || !c.x.workers[n].pages.hasPage(id) {
				err = fmt.Errorf("number %d does not know that it is in it", n)
				return
			}
			c.held[n] += bits.OnesCount64(g.onAnyTier())
			c.in[n]++
			c.size.addHolder(g)
		}
	})
	for _, p := range v.pools() {
		if checkLabels(p.labels, p.mask) != nil {
			return fmt.Errorf("pool at %d has bad labels", p.pool)
		}
		if p.mask == 0 || int(p.pool) >= len(c.pooled) || !c.x.pools[p.pool].pages.hasPage(id) {
			return fmt.Errorf("pool at %d does not know that it is in it", p.pool)
		}
		c.pooled[p.pool] += bits.OnesCount64(p.mask)
		c.pages[p.pool]++
		c.size.pooled += bits.OnesCount64(p.mask)
	}
	return err
}

func (e *groupExt) check(held uint64) error {
	if len(e.labels) == 0 && e.slow == [kv.Tiers - 1]uint64{} {
		return fmt.Errorf("nothing in it")
	}
	return checkLabels(e.labels, held)
}

// checkLabels: each label is there once, in order, for blocks among those held, and no block has two.
func checkLabels(labels []blockLabels, held uint64) error {
	var seen uint64
	for i, l := range labels {
		if l.mask == 0 || l.mask&(seen|^held) != 0 || !l.label.IsValid() || l.label.Has == 0 ||
			i > 0 && compareLabels(labels[i-1].label, l.label) >= 0 {
			return fmt.Errorf("label %v of %x", l.label, l.mask)
		}
		seen |= l.mask
	}
	return nil
}

func (c *checker) checkHolders() error {
	for n := range c.x.workers {
		if w := &c.x.workers[n]; w.held != c.held[n] || w.pages.count != c.in[n] || w.held > c.x.cfg.MaxBlocks {
			return fmt.Errorf("worker %v counts %d blocks of %d in %d pages of %d", w.id, w.held, c.held[n], w.pages.count, c.in[n])
		}
	}
	for i := range c.x.pools {
		if p := &c.x.pools[i]; p.held != c.pooled[i] || p.pages.count != c.pages[i] {
			return fmt.Errorf("pool %d counts %d blocks of %d in %d pages of %d", p.id, p.held, c.pooled[i], p.pages.count, c.pages[i])
		}
	}
	return nil
}

func (c *checker) checkTables() error {
	x := c.x
	if x.sizes != c.size {
		return fmt.Errorf("counted %+v, there is %+v", x.sizes, c.size)
	}
	pages := c.spans * spanBytes()
	for _, chunk := range x.pages.chunks {
		if chunk != nil {
			pages += allocPointerBytes(chunkBytes)
		}
	}
	if pages != x.pages.bytes || len(x.staleSpans) > 0 {
		return fmt.Errorf("spans and chunks take %d bytes, not %d, or are stale", pages, x.pages.bytes)
	}
	slots, bytes := 0, 0
	for i := range x.blocks.shards {
		slots += x.blocks.shards[i].count
		bytes += allocBytes(8 * len(x.blocks.shards[i].slots))
	}
	if slots != c.found || slots != x.blocks.count || bytes != x.blocks.bytes {
		return fmt.Errorf("where has %d blocks of %d in %d bytes of %d", slots, c.found, x.blocks.bytes, bytes)
	}
	live, bytes := 0, 0
	for i := range x.heads.shards {
		live += int(x.heads.shards[i].live)
		bytes += x.heads.shards[i].table.Load().memoryBytes()
	}
	if live != x.pages.live || live != x.heads.live || bytes != x.heads.bytes {
		return fmt.Errorf("heads has %d pages of %d in %d bytes of %d", live, x.pages.live, x.heads.bytes, bytes)
	}
	return nil
}
