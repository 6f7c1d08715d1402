package prefix

import "slices"

// tierWalk is the walk along the prompt for which tiers up to one count: which workers still match, and where
// the others stopped. A worker that matches at tier t also matches at every slower tier.
type tierWalk struct {
	active []uint64
	lo, hi int // active is 0 outside, and not 0 at both ends
	runs   []workerRun
}

// workerRun is the workers which hold exactly depth leading blocks, at Match.words[at:at+n]: the words of a
// set from word lo on. Runs are in ascending order.
type workerRun struct {
	depth     int
	lo, at, n int
}

// trimEmpty removes words without workers at both ends.
func (l *tierWalk) trimEmpty() {
	for l.lo < l.hi && l.active[l.lo] == 0 {
		l.lo++
	}
	for l.lo < l.hi && l.active[l.hi-1] == 0 {
		l.hi--
	}
}

func (l *tierWalk) isEmpty() bool { return l.lo == l.hi }

// allHold reports whether all active workers have the first k blocks of v on the device. On most pages no
// worker stops, whatever other groups there are.
func (l *tierWalk) allHold(v *pageVersion, k int) bool {
	start := int(v.start)
	for i := l.lo; i < l.hi; i++ {
		left := l.active[i]
		if leadingBlocks(v.firstGroup.device, start) >= k {
			left &^= v.firstGroup.set.wordAt(i)
		}
		if v.more != nil {
			for j := range v.more.groups {
				if left == 0 {
					break
				}
				if g := &v.more.groups[j]; leadingBlocks(g.device, start) >= k {
					left &^= g.set.wordAt(i)
				}
			}
		}
		if left != 0 {
			return false
		}
	}
	return true
}

// keepOnly stops the active workers which are not in s at depth pos.
func (m *Match) keepOnly(l *tierWalk, pos int, s *numberSet) {
	if s.coversActive(l) {
		return
	}
	if pos > 0 {
		words := m.runWords(l, pos)
		for i := range words {
			words[i] |= l.active[l.lo+i] &^ s.wordAt(l.lo+i)
		}
	}
	lo, hi := max(l.lo, int(s.lo)), min(l.hi, s.endWord())
	if lo >= hi {
		l.hi = l.lo
		return
	}
	for i := lo; i < hi; i++ {
		l.active[i] &= s.wordAt(i)
	}
	l.lo, l.hi = lo, hi
	l.trimEmpty()
}

// coversActive reports whether all active workers of l are in s. Both ends of l are not 0.
func (s *numberSet) coversActive(l *tierWalk) bool {
	if l.lo < int(s.lo) || l.hi > s.endWord() {
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

// stopInPage stops each active worker where its blocks of a page end. The prompt matches k blocks of the
// page, the first at offset start of the masks and position pos. It takes a few steps for each part and each
// word which the part's set covers, however many words there are.
func (m *Match) stopInPage(l *tierWalk, pos, start, k int) {
	m.full = append(m.full[:0], l.active[l.lo:l.hi]...)
	m.nextPart = m.nextPart[:0]
	var first [window + 1]int32 // by depth: one more than the latest part with it, 0 for none
	for i := range m.parts {
		s := &m.parts[i].set
		depth := min(leadingBlocks(m.parts[i].mask, start), k)
		m.nextPart = append(m.nextPart, first[depth])
		first[depth] = int32(i + 1)
		if depth == 0 {
			continue
		}
		if at := int(s.lo) - l.lo; uint(at) < uint(len(m.full)) {
			m.full[at] &^= s.one
		}
		from, rest := s.restWithin(l.lo, len(m.full))
		for j, w := range rest {
			m.full[from+j] &^= w
		}
	}
	m.stopWorkers(l, pos, m.full)
	for depth := 1; depth < k; depth++ {
		if first[depth] > 0 {
			m.stopAtDepth(l, pos+depth, first[depth])
		}
	}
	l.trimEmpty()
}

// stopAtDepth stops workers at a new depth: all which are in the part before number part, or in a part
// which m.next chains to it.
func (m *Match) stopAtDepth(l *tierWalk, depth int, part int32) {
	lo, hi := l.hi, l.lo
	for i := part; i > 0; i = m.nextPart[i-1] {
		s := &m.parts[i-1].set
		lo, hi = min(lo, int(s.lo)), max(hi, s.endWord())
	}
	lo, hi = max(lo, l.lo), min(hi, l.hi)
	if lo >= hi {
		return
	}
	at, n := len(m.words), hi-lo
	m.words = slices.Grow(m.words, n)[:at+n]
	words, any := m.words[at:], uint64(0)
	clear(words)
	for i := part; i > 0; i = m.nextPart[i-1] {
		s := &m.parts[i-1].set
		active := l.active[lo:hi]
		if at := int(s.lo) - lo; uint(at) < uint(n) {
			w := active[at] & s.one
			words[at] |= w
			active[at] &^= w
			any |= w
		}
		from, rest := s.restWithin(lo, n)
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
	l.runs = append(l.runs, workerRun{depth: depth, lo: lo, at: at, n: n})
}

// stopWorkers stops the workers in gone, words from l.lo on, at a depth.
func (m *Match) stopWorkers(l *tierWalk, depth int, gone []uint64) {
	var any uint64
	for _, w := range gone {
		any |= w
	}
	if any == 0 {
		return
	}
	words := m.runWords(l, depth)
	for i, w := range gone {
		words[i] |= w
		l.active[l.lo+i] &^= w
	}
}

// stopAll stops all remaining workers at a depth.
func (m *Match) stopAll(l *tierWalk, depth int) {
	if !l.isEmpty() {
		m.stopWorkers(l, depth, l.active[l.lo:l.hi])
	}
	l.trimEmpty()
}

// runWords returns the words, from l.lo on, of the run of a depth, which is the last one or comes after it.
// Runs of depth 0 are discarded, because answers do not include workers which hold nothing.
func (m *Match) runWords(l *tierWalk, depth int) []uint64 {
	if last := len(l.runs) - 1; last >= 0 && l.runs[last].depth == depth && l.runs[last].lo == l.lo && l.runs[last].n == l.hi-l.lo {
		r := l.runs[last]
		return m.words[r.at : r.at+r.n]
	}
	at, n := len(m.words), l.hi-l.lo
	m.words = slices.Grow(m.words, n)[:at+n]
	clear(m.words[at:])
	if depth > 0 {
		l.runs = append(l.runs, workerRun{depth: depth, lo: l.lo, at: at, n: n})
	}
	return m.words[at:]
}
