package prefix

import (
	"math/bits"

	"penstock/core/kv"
)

// specialCounts counts the matched blocks of one page which are attachable or labelled, for a set of workers.
type specialCounts struct {
	set                  workerRun
	attachable, labelled int
}

// pagePart is a set of workers which have the same blocks of a page.
type pagePart struct {
	set                  numberSet
	mask                 uint64
	attachable, labelled uint64
}

// splitParts sets parts to the sets of workers with the same blocks of a page when tiers up to t count.
func (m *Match) splitParts(v *pageVersion, t int, moe *kv.MoEQuery) {
	m.parts, m.split = m.parts[:0], m.split[:0]
	v.eachGroup(func(g *holderGroup) {
		p := pagePart{set: g.set, mask: g.upToTier(t)}
		if moe != nil && t == m.tiers-1 {
			p.labelled = g.labelledBlocks(moe)
		}
		m.parts = append(m.parts, p)
	})
	if t < int(kv.TierPool) || v.more == nil || len(v.more.pools) == 0 {
		return
	}
	m.addOthers(&m.walks[t])
	for _, p := range v.more.pools {
		if int(p.pool) < len(m.view.access) {
			labelled := uint64(0)
			if moe != nil {
				labelled = matchingBlocks(p.labels, moe)
			}
			m.splitByAccess(&m.walks[t], p.mask, labelled, &m.view.access[p.pool])
		}
	}
}

// addOthers adds the part of the workers which are in no other.
func (m *Match) addOthers(l *tierWalk) {
	m.addPart(l, pagePart{}, func(i int) uint64 {
		w := l.active[i]
		for j := range m.parts {
			w &^= m.parts[j].set.wordAt(i)
		}
		return w
	})
}

// splitByAccess splits each part into the workers with access to a pool, which also have its blocks and labels,
// and the workers without.
func (m *Match) splitByAccess(l *tierWalk, mask, labelled uint64, access *numberSet) {
	for j := range m.parts {
		all := m.parts[j]
		with := all
		with.mask |= mask
		with.attachable |= mask
		with.labelled |= labelled
		if m.addPart(l, with, func(i int) uint64 { return all.set.wordAt(i) & access.wordAt(i) }) {
			// Workers which are in no part have nothing of the page, so the empty set may stay.
			m.parts[j].set = numberSet{}
			m.addPart(l, all, func(i int) uint64 { return all.set.wordAt(i) &^ access.wordAt(i) })
		}
	}
}

// addPart adds p with the set which word returns, unless the set is empty.
func (m *Match) addPart(l *tierWalk, p pagePart, word func(i int) uint64) bool {
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
	p.set = numberSet{one: words[0], rest: words[1:], lo: uint32(l.lo)}
	m.parts = append(m.parts, p)
	return true
}

// countSpecial counts the attachable and labelled blocks among the blocks of a page which parts match.
func (m *Match) countSpecial(l *tierWalk, start, k int) {
	for i := range m.parts {
		p := &m.parts[i]
		matched := maskOf(start, min(leadingBlocks(p.mask, start), k))
		t := specialCounts{attachable: bits.OnesCount64(p.attachable & matched), labelled: bits.OnesCount64(p.labelled & matched)}
		if t.attachable == 0 && t.labelled == 0 {
			continue
		}
		t.set = workerRun{lo: l.lo, at: len(m.words), n: l.hi - l.lo}
		for i := l.lo; i < l.hi; i++ {
			m.words = append(m.words, l.active[i]&p.set.wordAt(i))
		}
		m.counts = append(m.counts, t)
	}
}
