package prefix

import "penstock/core/kv"

// Match is the answer of [Index.Match], and its memory: reusing one avoids allocations. Its Runs and Sets are
// valid until it is reused.
type Match struct {
	view   *view
	levels [kv.Tiers]level
	n      int // tiers in use
	// counts are for the last tier.
	tallies []tally
	words   []uint64 // the sets of runs and counts
	runs    []Run    // result of DepthRuns

	// Scratch for a page.
	parts   []part
	next    []int32
	full    []uint64
	split   []uint64
	columns columns // scratch of AppendOverlaps
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
		m.begin(v)
		if v.levels == 1 && moe == nil {
			m.walkDevice(&x.heads, chain)
		} else {
			m.walk(&x.heads, chain, moe)
		}
		if x.view.Load().reused == v.reused {
			return
		}
	}
}

// startWalk initializes the walks with all visible workers.
func (m *Match) begin(v *view) {
	m.view, m.n = v, v.levels
	m.tallies, m.words = m.tallies[:0], m.words[:0]
	for i := range m.levels[:m.n] {
		l := &m.levels[i]
		l.active = append(l.active[:0], v.visible...)
		l.lo, l.hi = 0, len(l.active)
		l.narrow()
		l.runs = l.runs[:0]
	}
}

// commonBlocks returns how many leading blocks of chain v has: all which it can have, found in one
// comparison, or those before the chain leaves the page.
func (v *version) covers(chain []kv.SeqHash) int {
	n := int(v.n)
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
func (m *Match) walkDevice(h *heads, chain []kv.SeqHash) {
	l, pos := &m.levels[0], 0
	for pos < len(chain) && !l.empty() {
		v := h.find(chain[pos])
		if v == nil {
			break
		}
		rest := chain[pos:]
		// Most pages are full windows held by one group, and several in a row by the same. The position of
		// the next page is then a constant after predictable branches, and does not depend on this page's
		// memory, so the cache misses of consecutive pages overlap.
		if v.span > 0 {
			if len(rest) >= spanBlocks && v.span == spanPages && rest[spanBlocks-1] == v.lasts[spanPages-1] {
				m.keep(l, pos, &v.first.set)
				pos += spanBlocks
				continue
			}
			if n := v.passes(rest); n > 0 {
				m.keep(l, pos, &v.first.set)
				pos += n * window
				continue
			}
		}
		if len(rest) >= window && v.n == window && rest[window-1] == v.last && v.more == nil && v.first.device == ^uint64(0) {
			m.keep(l, pos, &v.first.set)
			pos += window
			continue
		}
		k := v.covers(rest)
		switch {
		case v.more == nil && leading(v.first.device, int(v.start)) >= k:
			m.keep(l, pos, &v.first.set)
		case !l.stays(v, k):
			m.parts = m.parts[:0]
			v.groups(func(g *group) { m.parts = append(m.parts, part{set: g.set, mask: g.device}) })
			m.cut(l, pos, int(v.start), k)
		}
		pos += k
	}
	m.leave(l, pos)
}

// pageFinder finds pages along a chain. Most begin 64 blocks after the one before, and memory latency
// dominates: so it looks up several at once, twice as many each time it succeeds.
type ahead struct {
	heads *heads
	first int // number of entries in found, the first at position first
	n     int
	found [aheadPages]*version
}

const aheadPages = 8

func (a *ahead) find(chain []kv.SeqHash, pos int) *version {
	if i := (pos - a.first) / window; a.first+i*window == pos && i < a.n {
		return a.found[i]
	}
	if a.n > 0 && pos == a.first+a.n*window {
		a.n = min(2*a.n, aheadPages)
	} else {
		a.n = 1
	}
	a.first = pos
	for i := range a.n {
		at := pos + i*window
		if at >= len(chain) {
			a.n = i
			break
		}
		a.found[i] = a.heads.find(chain[at])
	}
	return a.found[0]
}

// walkTiers walks along the pages of the prompt for all tiers at once, so that all see the same version of a
// page.
func (m *Match) walk(h *heads, chain []kv.SeqHash, moe *kv.MoEQuery) {
	last, pos := &m.levels[m.n-1], 0
	a := ahead{heads: h}
	for pos < len(chain) && !last.empty() {
		v := a.find(chain, pos)
		if v == nil {
			break
		}
		k := v.covers(chain[pos:])
		for i := range m.levels[:m.n] {
			l := &m.levels[i]
			if l.empty() {
				continue
			}
			m.divide(v, i, moe)
			if l == last {
				m.tally(l, int(v.start), k)
			}
			m.cut(l, pos, int(v.start), k)
		}
		pos += k
	}
	for i := range m.levels[:m.n] {
		m.leave(&m.levels[i], pos)
	}
}
