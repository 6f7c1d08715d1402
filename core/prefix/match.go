package prefix

import "penstock/core/kv"

// Match is the answer of [Index.Match], and its memory: reusing one avoids allocations. Its Runs and Sets are
// valid until it is reused.
type Match struct {
	view  *lookupView
	walks [kv.Tiers]tierWalk
	tiers int // tiers in use
	// counts are for the last tier.
	counts []specialCounts
	words  []uint64 // the sets of runs and counts
	runs   []Run    // result of DepthRuns

	// Scratch for a page.
	parts    []pagePart
	nextPart []int32
	full     []uint64
	split    []uint64
	columns  overlapColumns // scratch of AppendOverlaps
}

// Match finds into m which workers hold how much of a prompt; chain has the SeqHashes of its full blocks in
// order. If moe is not nil, labels are counted. Match may run concurrently with the writer and with other
// lookups; the package comment says what it then answers. Hidden workers are not matched.
//
// A lookup visits one page per 64 blocks (up to 512 where the same workers hold them all), and one more for
// each place where a page begins or the chain leaves one. Each page takes a few steps for each of its groups
// and each 64 workers.
func (x *Index) Match(m *Match, chain []kv.SeqHash, moe *kv.MoEQuery) {
	for {
		v := x.view.Load()
		m.startWalk(v)
		if v.levels == 1 && moe == nil {
			m.walkDevice(&x.heads, chain)
		} else {
			m.walkTiers(&x.heads, chain, moe)
		}
		if x.view.Load().reused == v.reused {
			return
		}
	}
}

// startWalk initializes the walks with all visible workers.
func (m *Match) startWalk(v *lookupView) {
	m.view, m.tiers = v, v.levels
	m.counts, m.words = m.counts[:0], m.words[:0]
	for i := range m.walks[:m.tiers] {
		l := &m.walks[i]
		l.active = append(l.active[:0], v.visible...)
		l.lo, l.hi = 0, len(l.active)
		l.trimEmpty()
		l.runs = l.runs[:0]
	}
}

// commonBlocks returns how many leading blocks of chain v has: all which it can have, found in one
// comparison, or those before the chain leaves the page.
func (v *pageVersion) commonBlocks(chain []kv.SeqHash) int {
	n := int(v.count)
	if n <= len(chain) {
		if chain[n-1] == v.last {
			return n
		}
	} else {
		n = len(chain)
		if chain[n-1] == v.hashes[n-1] {
			return n
		}
	}
	has, not := 1, n-1 // the head is equal; blocks from not on differ
	for has < not {
		if mid := (has + not) / 2; chain[mid] == v.hashes[mid] {
			has = mid + 1
		} else {
			not = mid
		}
	}
	return has
}

// walkDevice is walkTiers for an index without blocks on slower tiers, and a lookup without labels.
func (m *Match) walkDevice(h *headIndex, chain []kv.SeqHash) {
	l, pos := &m.walks[0], 0
	for pos < len(chain) && !l.isEmpty() {
		v := h.findPage(chain[pos])
		if v == nil {
			break
		}
		rest := chain[pos:]
		// Most pages are full windows held by one group, and several in a row by the same. The position of
		// the next page is then a constant after predictable branches, and does not depend on this page's
		// memory, so the cache misses of consecutive pages overlap.
		if v.span > 0 {
			if len(rest) >= spanBlocks && v.span == spanPages && rest[spanBlocks-1] == v.lasts[spanPages-1] {
				m.keepOnly(l, pos, &v.firstGroup.set)
				pos += spanBlocks
				continue
			}
			if n := v.passedWindows(rest); n > 0 {
				m.keepOnly(l, pos, &v.firstGroup.set)
				pos += n * window
				continue
			}
		}
		if len(rest) >= window && v.count == window && rest[window-1] == v.last && v.more == nil && v.firstGroup.device == ^uint64(0) {
			m.keepOnly(l, pos, &v.firstGroup.set)
			pos += window
			continue
		}
		k := v.commonBlocks(rest)
		switch {
		case v.more == nil && leadingBlocks(v.firstGroup.device, int(v.start)) >= k:
			m.keepOnly(l, pos, &v.firstGroup.set)
		case !l.allHold(v, k):
			m.parts = m.parts[:0]
			v.eachGroup(func(g *holderGroup) { m.parts = append(m.parts, pagePart{set: g.set, mask: g.device}) })
			m.stopInPage(l, pos, int(v.start), k)
		}
		pos += k
	}
	m.stopAll(l, pos)
}

// pageFinder finds pages along a chain. Most begin 64 blocks after the one before, and memory latency
// dominates: so it looks up several at once, twice as many each time it succeeds.
type pageFinder struct {
	heads *headIndex
	first int // number of entries in found, the first at position first
	count int
	found [aheadPages]*pageVersion
}

const aheadPages = 8

func (a *pageFinder) findPage(chain []kv.SeqHash, pos int) *pageVersion {
	if i := (pos - a.first) / window; a.first+i*window == pos && i < a.count {
		return a.found[i]
	}
	if a.count > 0 && pos == a.first+a.count*window {
		a.count = min(2*a.count, aheadPages)
	} else {
		a.count = 1
	}
	a.first = pos
	for i := range a.count {
		at := pos + i*window
		if at >= len(chain) {
			a.count = i
			break
		}
		a.found[i] = a.heads.findPage(chain[at])
	}
	return a.found[0]
}

// walkTiers walks along the pages of the prompt for all tiers at once, so that all see the same version of a
// page.
func (m *Match) walkTiers(h *headIndex, chain []kv.SeqHash, moe *kv.MoEQuery) {
	last, pos := &m.walks[m.tiers-1], 0
	a := pageFinder{heads: h}
	for pos < len(chain) && !last.isEmpty() {
		v := a.findPage(chain, pos)
		if v == nil {
			break
		}
		k := v.commonBlocks(chain[pos:])
		for i := range m.walks[:m.tiers] {
			l := &m.walks[i]
			if l.isEmpty() {
				continue
			}
			m.splitParts(v, i, moe)
			if l == last {
				m.countSpecial(l, int(v.start), k)
			}
			m.stopInPage(l, pos, int(v.start), k)
		}
		pos += k
	}
	for i := range m.walks[:m.tiers] {
		m.stopAll(&m.walks[i], pos)
	}
}
