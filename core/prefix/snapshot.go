package prefix

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"penstock/core/kv"
)

// The format of a snapshot: docs/format/snapshot.md, "Index section".
const (
	snapshotVersion = 1
	// shareVersion is the version of a snapshot which has pool shares with access lists of their own: older
	// readers would refuse their ids.
	shareVersion = 2

	workerHidden = 1 << 0

	pageBlocks = 0x3f   // mask for a page's second byte: its number of blocks less one
	pageGroups = 1 << 6 // the number of groups follows; else there is one
	pagePools  = 1 << 7 // pools follow the groups

	groupAll    = 1 << 0 // all blocks are on the device
	groupSlow   = 1 << 1 // first of three flags: the slower tiers
	groupLabels = 1 << 4
	groupOne    = 1 << 5 // one worker
	groupFlags  = 1<<6 - 1
)

// AppendSnapshot appends to dst everything the index holds, including pools and hidden workers, but not
// counts, and not the labels of blocks in pools, which the owner of the pools adds. Only the writer may call it.
// It takes about as long as copying the hashes.
func (x *Index) AppendSnapshot(dst []byte) []byte {
	v := x.view.Load()
	pools, index := x.sortedPools()
	version := byte(snapshotVersion)
	if n := len(pools); n > 0 && pools[n-1].id.IsPart() {
		version = shareVersion
	}
	dst = append(dst, version)
	dst = binary.AppendUvarint(dst, uint64(len(v.order)))
	for _, n := range v.order {
		w := &x.workers[n]
		dst = appendWorker(dst, w.id)
		if w.hidden {
			dst = append(dst, workerHidden)
		} else {
			dst = append(dst, 0)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(pools)))
	for _, p := range pools {
		dst = binary.AppendUvarint(dst, uint64(p.id))
		dst = binary.AppendUvarint(dst, uint64(len(p.access)))
		for _, w := range p.access {
			dst = appendWorker(dst, w)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(x.pages.live))
	s := snapshotWriter{view: v, pools: index}
	for _, page := range x.pages.sortedByHead() {
		dst = s.appendPage(dst, page)
	}
	return dst
}

func appendWorker(dst []byte, w kv.Worker) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(w.ID)), uint64(w.Rank))
}

// sortedPools returns the pools by ascending id, and for each index in Index.pools the position among them.
func (x *Index) sortedPools() (pools []*blockPool, index []int) {
	for i := range x.pools {
		if x.pools[i].known {
			pools = append(pools, &x.pools[i])
		}
	}
	slices.SortFunc(pools, func(a, b *blockPool) int { return cmp.Compare(a.id, b.id) })
	index = make([]int, len(x.pools))
	for i, p := range pools {
		index[x.poolNumbers[p.id]] = i
	}
	return pools, index
}

// sortedByHead returns the pages by ascending head.
func (p *pageTable) sortedByHead() []*pageVersion {
	all := make([]*pageVersion, 0, p.live)
	for _, c := range p.chunks {
		if c == nil {
			continue
		}
		for _, v := range c.versions {
			if v != nil {
				all = append(all, v)
			}
		}
	}
	slices.SortFunc(all, func(a, b *pageVersion) int { return cmp.Compare(a.head, b.head) })
	return all
}

// snapshotWriter writes pages; groups and ranks are scratch.
type snapshotWriter struct {
	view   *lookupView
	pools  []int // by index in Index.pools: the position in the snapshot
	groups []*holderGroup
	ranks  []uint32
}

func (s *snapshotWriter) appendPage(dst []byte, v *pageVersion) []byte {
	s.groups = s.groups[:0]
	v.eachGroup(func(g *holderGroup) { s.groups = append(s.groups, g) })
	slices.SortFunc(s.groups, compareGroups)
	pools := v.pools()

	form := v.count - 1
	if len(s.groups) != 1 {
		form |= pageGroups
	}
	if len(pools) > 0 {
		form |= pagePools
	}
	dst = append(dst, v.start, form)
	for _, seq := range v.hashes[:v.count] {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(seq))
	}
	if form&pageGroups != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(s.groups)))
	}
	for _, g := range s.groups {
		dst = s.appendGroup(dst, g, maskOf(int(v.start), int(v.count)))
	}
	if form&pagePools == 0 {
		return dst
	}
	ordered := slices.Clone(pools)
	slices.SortFunc(ordered, func(a, b pooledBlocks) int { return s.pools[a.pool] - s.pools[b.pool] })
	dst = binary.AppendUvarint(dst, uint64(len(ordered)))
	for _, p := range ordered {
		dst = binary.AppendUvarint(dst, uint64(s.pools[p.pool]))
		dst = binary.LittleEndian.AppendUint64(dst, p.mask)
	}
	return dst
}

// compareGroups orders the groups of a page; no two hold the same blocks.
func compareGroups(a, b *holderGroup) int {
	if c := cmp.Compare(a.device, b.device); c != 0 || a.ext == b.ext {
		return c
	}
	var none groupExt
	ea, eb := cmp.Or(a.ext, &none), cmp.Or(b.ext, &none)
	return cmp.Or(slices.Compare(ea.slow[:], eb.slow[:]), slices.CompareFunc(ea.labels, eb.labels, func(a, b blockLabels) int {
		return cmp.Or(compareLabels(a.label, b.label), cmp.Compare(a.mask, b.mask))
	}))
}

func (s *snapshotWriter) appendGroup(dst []byte, g *holderGroup, all uint64) []byte {
	flags := byte(0)
	if g.device == all {
		flags |= groupAll
	}
	if g.set.size() == 1 {
		flags |= groupOne
	}
	for t := range kv.Tiers - 1 {
		if g.onTier(kv.Tier(t+1)) != 0 {
			flags |= groupSlow << t
		}
	}
	if g.ext != nil && len(g.ext.labels) > 0 {
		flags |= groupLabels
	}
	dst = append(dst, flags)
	if flags&groupAll == 0 {
		dst = binary.LittleEndian.AppendUint64(dst, g.device)
	}
	for t := kv.Tier(1); t < kv.Tiers; t++ {
		if mask := g.onTier(t); mask != 0 {
			dst = binary.LittleEndian.AppendUint64(dst, mask)
		}
	}
	if flags&groupLabels != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(g.ext.labels)))
		for _, l := range g.ext.labels {
			dst = appendLabel(dst, l)
		}
	}
	return s.appendSet(dst, g.set)
}

func appendLabel(dst []byte, l blockLabels) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, l.mask)
	dst = append(dst, byte(l.label.Has))
	dst = binary.AppendUvarint(dst, uint64(l.label.Layer))
	dst = binary.AppendUvarint(dst, uint64(l.label.Expert))
	if l.label.Has&kv.HasGroup != 0 {
		dst = binary.AppendUvarint(dst, uint64(l.label.Group))
	}
	return dst
}

// appendSet writes a single worker as its rank, several as runs of ranks.
func (s *snapshotWriter) appendSet(dst []byte, set numberSet) []byte {
	s.ranks = s.ranks[:0]
	for n := range set.eachNumber() {
		s.ranks = append(s.ranks, s.view.rank[n])
	}
	if len(s.ranks) == 1 {
		return binary.AppendUvarint(dst, uint64(s.ranks[0]))
	}
	slices.Sort(s.ranks)
	runs := 1
	for i := range s.ranks[1:] {
		if s.ranks[i+1] != s.ranks[i]+1 {
			runs++
		}
	}
	dst = binary.AppendUvarint(dst, uint64(runs))
	end := uint32(0) // of the previous run
	for i := 0; i < len(s.ranks); {
		first, n := s.ranks[i], uint32(1)
		for i+int(n) < len(s.ranks) && s.ranks[i+int(n)] == first+n {
			n++
		}
		dst = binary.AppendUvarint(dst, uint64(first-end))
		dst = binary.AppendUvarint(dst, uint64(n-1))
		end = first + n
		i += int(n)
	}
	return dst
}

// holdsEnds reports whether held has the blocks at both ends of a page, and no others than the page's.
func holdsEnds(held uint64, start, n int) bool {
	return held&^maskOf(start, n) == 0 && bits.TrailingZeros64(held) == start && bits.Len64(held) == start+n
}
