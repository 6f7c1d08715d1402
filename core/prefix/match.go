package prefix

import (
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// Match is the answer of [Index.Match], and the memory of it: one that is used again
// allocates nothing. Runs and Sets in it are valid until it is used again.
type Match struct {
	view   *view
	levels [kv.Tiers]level
	n      int // levels in use
	// tallies are of the last level.
	tallies []tally
	words   []uint64 // the sets of runs and tallies
	runs    []Run    // what Runs returned

	// Scratch of a page.
	parts   []part
	next    []int32
	full    []uint64
	split   []uint64
	columns columns // scratch of AppendOverlaps
}

// level is the walk along the prompt in which tiers up to one count: who is still
// with it, and who left it where. A worker that is with a level is with all slower ones.
type level struct {
	active []uint64
	lo, hi int // active means nothing outside; at both ends it is not 0
	runs   []run
}

// run are the workers that hold exactly depth leading blocks, at Match.words[at:at+n]:
// the words of a set from word lo on. Runs are in ascending order.
type run struct {
	depth     int
	lo, at, n int
}

// tally counts for some workers blocks that were matched in one page.
type tally struct {
	set                  run
	attachable, labelled int
}

// part is a set of workers that have the same of a page.
type part struct {
	set                  set
	mask                 uint64
	attachable, labelled uint64
}

// Match finds who holds how much of a prompt, of which chain has the SeqHashes of the full
// blocks in order, into m. moe, if not nil, has labels counted. It may run beside the
// writer and beside others; see the package's comment for what it then answers. What is
// hidden is not matched.
//
// The cost of a lookup is that of one page for each 64 blocks, for up to 512 where the same
// workers hold them all, and for each place where a page begins or the chain leaves one; of a page, some steps for each of its groups and
// each 64 workers.
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

// begin makes every visible worker one that holds nothing yet.
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

// narrow leaves out words without workers at both ends.
func (l *level) narrow() {
	for l.lo < l.hi && l.active[l.lo] == 0 {
		l.lo++
	}
	for l.lo < l.hi && l.active[l.hi-1] == 0 {
		l.hi--
	}
}

func (l *level) empty() bool { return l.lo == l.hi }

// covers returns how many leading blocks of chain v has: all that it can have, in one
// comparison, or else those before the chain left it.
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
	has, not := 1, n-1 // the head is equal, what is at not or behind is not
	for has < not {
		if mid := (has + not) / 2; chain[mid] == v.hashes[mid] {
			has = mid + 1
		} else {
			not = mid
		}
	}
	return has
}

// walkDevice is walk where nothing is on slower tiers and no label is asked for.
func (m *Match) walkDevice(h *heads, chain []kv.SeqHash) {
	l, pos := &m.levels[0], 0
	for pos < len(chain) && !l.empty() {
		v := h.find(chain[pos])
		if v == nil {
			break
		}
		rest := chain[pos:]
		// Most pages are full windows held by one group, and several in a row by the same. Where
		// the next page begins is then a constant behind branches that the processor guesses, and
		// not a number that comes from this page's memory: the misses of pages that follow one
		// another overlap.
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

// ahead finds pages along a chain. Most begin 64 blocks after the one before, and what
// costs time is to wait for memory: so several are looked for at once, more each time
// that they were there.
type ahead struct {
	heads *heads
	first int // position of the first of found
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

// stays reports whether all that are active have the first k blocks of v on the device: on
// most pages nobody leaves, whatever other groups there are.
func (l *level) stays(v *version, k int) bool {
	start := int(v.start)
	for i := l.lo; i < l.hi; i++ {
		left := l.active[i]
		if leading(v.first.device, start) >= k {
			left &^= v.first.set.word(i)
		}
		if v.more != nil {
			for j := range v.more.groups {
				if left == 0 {
					break
				}
				if g := &v.more.groups[j]; leading(g.device, start) >= k {
					left &^= g.set.word(i)
				}
			}
		}
		if left != 0 {
			return false
		}
	}
	return true
}

// walk goes along the pages of the prompt with all levels at once, so that all see the
// same version of a page.
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

// divide makes parts of who has what of a page when tiers up to t count.
func (m *Match) divide(v *version, t int, moe *kv.MoEQuery) {
	m.parts, m.split = m.parts[:0], m.split[:0]
	v.groups(func(g *group) {
		p := part{set: g.set, mask: g.upTo(t)}
		if moe != nil && t == m.n-1 {
			p.labelled = g.labelled(moe)
		}
		m.parts = append(m.parts, p)
	})
	if t < int(kv.TierPool) || v.more == nil || len(v.more.pools) == 0 {
		return
	}
	m.others(&m.levels[t])
	for _, p := range v.more.pools {
		if int(p.pool) < len(m.view.access) {
			m.share(&m.levels[t], p.mask, &m.view.access[p.pool])
		}
	}
}

// others adds the part of those that are in no other.
func (m *Match) others(l *level) {
	m.addPart(l, part{}, func(i int) uint64 {
		w := l.active[i]
		for j := range m.parts {
			w &^= m.parts[j].set.word(i)
		}
		return w
	})
}

// share divides each part into those with access to a pool, which have its blocks too,
// and those without.
func (m *Match) share(l *level, mask uint64, access *set) {
	for j := range m.parts {
		all := m.parts[j]
		with := all
		with.mask |= mask
		with.attachable |= mask
		if m.addPart(l, with, func(i int) uint64 { return all.set.word(i) & access.word(i) }) {
			// Who is in no part has nothing of the page: the empty set does for that.
			m.parts[j].set = set{}
			m.addPart(l, all, func(i int) uint64 { return all.set.word(i) &^ access.word(i) })
		}
	}
}

// addPart adds p with the set that word gives, unless that is empty.
func (m *Match) addPart(l *level, p part, word func(i int) uint64) bool {
	at, some := len(m.split), uint64(0)
	for i := l.lo; i < l.hi; i++ {
		w := word(i) & l.active[i]
		some |= w
		m.split = append(m.split, w)
	}
	if some == 0 {
		m.split = m.split[:at]
		return false
	}
	words := m.split[at:]
	p.set = set{one: words[0], rest: words[1:], lo: uint32(l.lo)}
	m.parts = append(m.parts, p)
	return true
}

// tally counts what parts have of special blocks among those that they match of a page.
func (m *Match) tally(l *level, start, k int) {
	for i := range m.parts {
		p := &m.parts[i]
		matched := maskOf(start, min(leading(p.mask, start), k))
		t := tally{attachable: bits.OnesCount64(p.attachable & matched), labelled: bits.OnesCount64(p.labelled & matched)}
		if t.attachable == 0 && t.labelled == 0 {
			continue
		}
		t.set = run{lo: l.lo, at: len(m.words), n: l.hi - l.lo}
		for i := l.lo; i < l.hi; i++ {
			m.words = append(m.words, l.active[i]&p.set.word(i))
		}
		m.tallies = append(m.tallies, t)
	}
}

// keep lets who is not in s leave at depth pos.
func (m *Match) keep(l *level, pos int, s *set) {
	if s.covers(l) {
		return
	}
	if pos > 0 {
		words := m.emit(l, pos)
		for i := range words {
			words[i] |= l.active[l.lo+i] &^ s.word(l.lo+i)
		}
	}
	lo, hi := max(l.lo, int(s.lo)), min(l.hi, s.end())
	if lo >= hi {
		l.hi = l.lo
		return
	}
	for i := lo; i < hi; i++ {
		l.active[i] &= s.word(i)
	}
	l.lo, l.hi = lo, hi
	l.narrow()
}

// covers reports whether all that are with l are in s. Both ends of l are not 0.
func (s *set) covers(l *level) bool {
	if l.lo < int(s.lo) || l.hi > s.end() {
		return false
	}
	active, at := l.active[l.lo:l.hi], l.lo-int(s.lo)
	if at == 0 {
		if active[0]&^s.one != 0 {
			return false
		}
		active, at = active[1:], 1
	}
	rest := s.rest[at-1:]
	for i, w := range active {
		if w&^rest[i] != 0 {
			return false
		}
	}
	return true
}

// cut lets everybody leave where what they have of a page ends: of the k blocks that
// the prompt has of it, the first at offset start of the masks and position pos. It costs
// some steps for each part and each word that its set covers, however many words there are.
func (m *Match) cut(l *level, pos, start, k int) {
	m.full = append(m.full[:0], l.active[l.lo:l.hi]...)
	m.next = m.next[:0]
	var first [window + 1]int32 // by depth: one more than the latest part of it, 0 for none
	for i := range m.parts {
		s := &m.parts[i].set
		depth := min(leading(m.parts[i].mask, start), k)
		m.next = append(m.next, first[depth])
		first[depth] = int32(i + 1)
		if depth == 0 {
			continue
		}
		if at := int(s.lo) - l.lo; uint(at) < uint(len(m.full)) {
			m.full[at] &^= s.one
		}
		from, rest := s.behind(l.lo, len(m.full))
		for j, w := range rest {
			m.full[from+j] &^= w
		}
	}
	m.depart(l, pos, m.full)
	for depth := 1; depth < k; depth++ {
		if first[depth] > 0 {
			m.cutAt(l, pos+depth, first[depth])
		}
	}
	l.narrow()
}

// cutAt lets those leave at a depth, which is new, who are in one of some parts: the one
// before number part, and those that m.next chains to it.
func (m *Match) cutAt(l *level, depth int, part int32) {
	lo, hi := l.hi, l.lo
	for i := part; i > 0; i = m.next[i-1] {
		s := &m.parts[i-1].set
		lo, hi = min(lo, int(s.lo)), max(hi, s.end())
	}
	lo, hi = max(lo, l.lo), min(hi, l.hi)
	if lo >= hi {
		return
	}
	at, n := len(m.words), hi-lo
	m.words = slices.Grow(m.words, n)[:at+n]
	words, any := m.words[at:], uint64(0)
	clear(words)
	for i := part; i > 0; i = m.next[i-1] {
		s := &m.parts[i-1].set
		active := l.active[lo:hi]
		if at := int(s.lo) - lo; uint(at) < uint(n) {
			w := active[at] & s.one
			words[at] |= w
			active[at] &^= w
			any |= w
		}
		from, rest := s.behind(lo, n)
		active, into := active[from:], words[from:]
		for j, w := range rest {
			w &= active[j]
			into[j] |= w
			active[j] &^= w
			any |= w
		}
	}
	if any == 0 {
		m.words = m.words[:at]
		return
	}
	l.runs = append(l.runs, run{depth: depth, lo: lo, at: at, n: n})
}

// depart lets the workers in gone, words from l.lo on, leave at a depth.
func (m *Match) depart(l *level, depth int, gone []uint64) {
	var any uint64
	for _, w := range gone {
		any |= w
	}
	if any == 0 {
		return
	}
	words := m.emit(l, depth)
	for i, w := range gone {
		words[i] |= w
		l.active[l.lo+i] &^= w
	}
}

// leave lets all that are left leave at a depth.
func (m *Match) leave(l *level, depth int) {
	if !l.empty() {
		m.depart(l, depth, l.active[l.lo:l.hi])
	}
	l.narrow()
}

// emit returns the words, from l.lo on, of the run of a depth, which is the last or comes
// after it. Nobody asks for who holds nothing: that run is for the bin.
func (m *Match) emit(l *level, depth int) []uint64 {
	if last := len(l.runs) - 1; last >= 0 && l.runs[last].depth == depth && l.runs[last].lo == l.lo && l.runs[last].n == l.hi-l.lo {
		r := l.runs[last]
		return m.words[r.at : r.at+r.n]
	}
	at, n := len(m.words), l.hi-l.lo
	m.words = slices.Grow(m.words, n)[:at+n]
	clear(m.words[at:])
	if depth > 0 {
		l.runs = append(l.runs, run{depth: depth, lo: l.lo, at: at, n: n})
	}
	return m.words[at:]
}
