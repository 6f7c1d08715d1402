package prefix

import (
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// pageSpan is up to 8 pages which follow one another along a chain, all but the last whole windows. The
// version of its first page says how many of them, including itself, the same workers hold completely, on the
// device only, and what their last hashes are: a lookup which has found the first page passes as many of them
// as the prompt has, in one step.
//
// What readers see of a span is part of its first page, so it is as current as the rest of the page: before a
// page changes, the first page is replaced by a version which does not include it. When the event is done,
// the first page is updated.
type pageSpan struct {
	// pages are numbers, then 0. Each page begins with the block after the last of the one before, and all
	// but the last are whole windows, whichever workers hold them.
	pages [spanPages]uint32
	// stale says that a page has changed since the first page was updated.
	stale bool
}

const (
	spanPages = 8
	// minSpan is the number of pages from which a span is worth its memory.
	minSpan    = 3
	spanBlocks = spanPages * window
)

// lastHashes are the hashes of the last blocks of a span's pages.
type lastHashes [spanPages]kv.SeqHash

// passedWindows returns how many whole windows of chain v's span has, 0 if it has no span.
func (v *pageVersion) passedWindows(chain []kv.SeqHash) int {
	has, not := 0, min(int(v.span), len(chain)/window)
	if not > 0 && chain[not*window-1] == v.lasts[not-1] {
		return not
	}
	for has+1 < not {
		if mid := (has + not) / 2; chain[mid*window-1] == v.lasts[mid-1] {
			has = mid
		} else {
			not = mid
		}
	}
	return has
}

// isWhole reports whether v is a whole window.
func (v *pageVersion) isWhole() bool { return v.count == window }

// isPlain reports whether v is a whole window which one group holds, all on the device.
func (v *pageVersion) isPlain() bool {
	return v.isWhole() && v.more == nil && v.firstGroup.device == ^uint64(0) && v.firstGroup.ext == nil
}

// spanBytes returns the memory of a span.
func spanBytes() int { return allocBytes(int(unsafe.Sizeof(pageSpan{}))) }

// pageCount returns how many pages s has.
func (s *pageSpan) pageCount() int {
	n := 0
	for n < spanPages && s.pages[n] != 0 {
		n++
	}
	return n
}

// linkNext records that page next begins with the block after the last of page id, which is at the end of its
// window. A page with several successors is in a span with the first of them.
func (x *Index) linkNext(id, next uint32) {
	if x.pages.spanOf(next) != nil || !x.pages.pageAt(id).isWhole() {
		return
	}
	s := x.pages.spanOf(id)
	if s == nil {
		s = &pageSpan{pages: [spanPages]uint32{id}}
		x.pages.setSpan(id, s)
		x.pages.bytes += spanBytes()
	}
	if n := s.pageCount(); n < spanPages && s.pages[n-1] == id {
		s.pages[n] = next
		x.pages.setSpan(next, s)
		x.markStale(s)
	}
}

// markStale schedules s for refreshSpans.
func (x *Index) markStale(s *pageSpan) {
	if !s.stale {
		s.stale = true
		x.staleSpans = append(x.staleSpans, s)
	}
}

// leaveSpan prepares the span of the open page, which will become v, or be removed if v is nil: lookups no
// longer pass over it.
func (x *Index) leaveSpan(v *pageVersion) {
	id := x.edit.id
	s := x.pages.spanOf(id)
	if s == nil {
		return
	}
	at := slices.Index(s.pages[:], id)
	if at > 0 {
		if root := x.pages.pageAt(s.pages[0]); at < int(root.span) {
			x.publishSpan(s, at)
		}
	}
	x.markStale(s)
	switch {
	case v == nil || v.start > 0:
		x.cutSpan(s, at)
	case !v.isWhole():
		x.cutSpan(s, at+1)
	}
}

// cutSpan removes the pages from the n-th on from s. A single page is no span.
func (x *Index) cutSpan(s *pageSpan, n int) {
	if n < 2 {
		n = 0
		if s.pages[0] != 0 {
			x.pages.bytes -= spanBytes()
		}
	}
	for i := n; i < spanPages && s.pages[i] != 0; i++ {
		x.pages.setSpan(s.pages[i], nil)
		s.pages[i] = 0
	}
}

// alikePages returns how many pages of s, including the first, the same workers hold completely.
func (x *Index) alikePages(s *pageSpan) int {
	if s.pages[0] == 0 {
		return 0
	}
	first := x.pages.pageAt(s.pages[0])
	if !first.isPlain() {
		return 0
	}
	n := 1
	for n < spanPages && s.pages[n] != 0 {
		if v := x.pages.pageAt(s.pages[n]); !v.isPlain() || !v.firstGroup.set.equals(&first.firstGroup.set) {
			break
		}
		n++
	}
	if n < minSpan {
		return 0
	}
	return n
}

// publishSpan publishes a version of the first page of s whose span has n pages.
func (x *Index) publishSpan(s *pageSpan, n int) {
	id := s.pages[0]
	old := x.pages.pageAt(id)
	v := *old
	v.span = uint8(n)
	switch {
	case n < minSpan:
		v.span, v.lasts = 0, nil
	case n > int(old.span):
		v.lasts = &lastHashes{}
		for i, page := range s.pages[:n] {
			v.lasts[i] = x.pages.pageAt(page).last
		}
	}
	x.sizes.replaceVersion(old, &v)
	x.heads.putPage(&v)
	x.pages.setPage(id, &v)
}

// refreshSpans updates the first pages of stale spans.
func (x *Index) refreshSpans() {
	for _, s := range x.staleSpans {
		s.stale = false
		if s.pages[0] == 0 {
			continue
		}
		if n := x.alikePages(s); n != int(x.pages.pageAt(s.pages[0]).span) {
			x.publishSpan(s, n)
		}
	}
	clear(x.staleSpans)
	x.staleSpans = x.staleSpans[:0]
	if cap(x.staleSpans) > maxScratch/8 {
		x.staleSpans = nil
	}
}

// finishChange ends a change of any number of pages.
func (x *Index) finishChange() {
	x.refreshSpans()
	x.publishLevels()
}
