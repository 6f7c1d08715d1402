package replica

import (
	"cmp"
	"maps"
	"slices"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// peerState is another router.
type peerState struct {
	router, epoch         uint64
	lastHeard, lastAgreed kv.Mono

	// All changes below nextSeq are known, and the changes in ahead; highSeq is the last one known to exist.
	nextSeq, highSeq uint64
	ahead            seqRanges
	// early holds the content of changes in ahead for reservations whose opAdded, or page, has not arrived.
	early map[uint64]earlyUpdate

	reservations map[uint64]*sharedReservation
	hashSum      uint64 // of their hashes

	// namedBlocks points to the number of counted blocks in the chains of all peers.
	namedBlocks *int

	wantsList   bool // a list is needed
	gapSince    kv.Mono
	nextRequest kv.Mono
	listSeq     uint64 // the list being read, up to listedUpTo
	listedUpTo  uint64
}

// earlyUpdate is what is known of a reservation before its opAdded has arrived.
type earlyUpdate struct {
	prefilled, freed bool
	output           int
}

// digestHash returns the hash which digests sum up for the reservation.
func (e *sharedReservation) digestHash() uint64 {
	h := splitmix.Mix(e.number + splitmix.Step)
	for _, v := range [...]uint64{uint64(e.worker.ID), uint64(e.worker.Rank), uint64(e.prefillTokens), uint64(e.publishedOutput)} {
		h = splitmix.Mix(h ^ v + splitmix.Step)
	}
	return h
}

// lookupPeer returns the state of another router in its latest epoch, and adds it if it is new. It returns
// nil for an earlier epoch, and if there are too many peers.
func (r *Replica) lookupPeer(router, epoch uint64) *peerState {
	at, known := slices.BinarySearchFunc(r.peers, router, func(p *peerState, id uint64) int { return cmp.Compare(p.router, id) })
	switch {
	case known && epoch < r.peers[at].epoch:
		return nil
	case known && epoch == r.peers[at].epoch:
		return r.peers[at]
	case known:
		r.peers[at].removeAll()
	case len(r.peers) == maxPeers:
		r.stats.Refused++
		return nil
	default:
		r.peers = slices.Insert(r.peers, at, nil)
		r.local.nextDigest = r.now // it does not know this router either
	}
	r.peers[at] = &peerState{router: router, epoch: epoch, lastHeard: r.now, nextSeq: 1, namedBlocks: &r.namedBlocks, early: map[uint64]earlyUpdate{}, reservations: map[uint64]*sharedReservation{}}
	return r.peers[at]
}

// hasGap reports whether changes are missing.
func (p *peerState) hasGap() bool { return p.wantsList || p.nextSeq <= p.highSeq }

// lastMissing returns the last number which is missing.
func (p *peerState) lastMissing() uint64 {
	if last := len(p.ahead) - 1; last >= 0 && p.ahead[last].last == p.highSeq {
		return p.ahead[last].first - 1
	}
	return p.highSeq
}

// requestList schedules a request for the peer's list.
func (p *peerState) requestList(now kv.Mono) {
	if !p.hasGap() {
		p.gapSince, p.nextRequest = now, now
	}
	p.wantsList = true
}

// recordHighest records that there are changes up to a number.
func (r *Replica) recordHighest(p *peerState, last uint64) {
	lacked := p.hasGap()
	p.highSeq = max(p.highSeq, last)
	if !lacked && p.hasGap() {
		p.gapSince, p.nextRequest = r.now, r.now.Add(reorderGrace)
		r.stats.Holes++
	}
}

// applyBatch applies a batch.
func (r *Replica) applyBatch(p *peerState, m *message) {
	first, last := m.first, m.first+uint64(len(m.changes))-1
	if len(m.changes) == 0 || last < p.nextSeq {
		return
	}
	ordered := first <= p.nextSeq
	if !ordered && (!p.ahead.hasRoom(first, last) || len(p.early)+len(m.changes) > maxEarlyUpdates) {
		r.stats.Refused++
		r.recordHighest(p, last)
		return // handled like a lost message
	}
	for i := range m.changes {
		c := &m.changes[i]
		seq := first + uint64(i)
		if seq < p.nextSeq || p.ahead.contains(seq) {
			continue
		}
		r.applyChange(p, seq, c, !ordered)
	}
	p.ahead.addRange(first, last)
	p.advanceNext()
	r.recordHighest(p, last)
}

// advanceNext advances nextSeq past all changes which are known without a gap.
func (p *peerState) advanceNext() {
	for len(p.ahead) > 0 && p.ahead[0].first <= p.nextSeq {
		p.nextSeq = max(p.nextSeq, p.ahead[0].last+1)
		p.ahead = slices.Delete(p.ahead, 0, 1)
	}
	if len(p.ahead) == 0 {
		clear(p.early)
	}
}

// applyChange applies one change. If remember is set, the change is ahead of a gap, and its content is kept
// for a reservation whose opAdded arrives later.
func (r *Replica) applyChange(p *peerState, seq uint64, c *change, remember bool) {
	number := seq - c.distance
	if c.op == opAdded {
		number = seq
		r.countReservation(p, number, &c.reservation, c.blockSize)
		return
	}
	if remember {
		was := p.early[number]
		was.prefilled = was.prefilled || c.op == opPrefilled
		was.freed = was.freed || c.op == opFreed
		was.output = max(was.output, c.output)
		p.early[number] = was
	}
	e := p.reservations[number]
	if e == nil {
		return
	}
	switch c.op {
	case opPrefilled:
		p.advanceReservation(e, 0, e.publishedOutput)
	case opGrown:
		p.advanceReservation(e, e.prefillTokens, c.output)
	case opFreed:
		p.removeReservation(e)
	}
}

// countReservation counts a new reservation, or updates a known one.
func (r *Replica) countReservation(p *peerState, number uint64, v *activeseq.Reservation, blockSize int) {
	was := p.early[number]
	if was.freed {
		return
	}
	left, output := v.PrefillTokens, max(v.OutputTokens, was.output)
	if was.prefilled {
		left = 0
	}
	e := p.reservations[number]
	if e != nil && e.worker != v.Worker { // reservations never move: two routers have the same id
		p.removeReservation(e)
		e = nil
	}
	if e == nil {
		if len(p.reservations) == maxReservations {
			r.stats.Refused++
			return
		}
		e = &sharedReservation{number: number, worker: v.Worker, prefillTokens: left, publishedOutput: output}
		p.reservations[number] = e
		p.hashSum += e.digestHash()
	}
	p.advanceReservation(e, left, output)
	if _, placed := e.ref.Reservation(); !placed {
		r.adoptReservation(e, v, blockSize)
	}
}

// adoptReservation counts a reservation at its worker, if the worker is known here. A prompt whose router
// uses another block size shares no blocks. Neither does one whose chain would exceed the limit of named
// blocks.
func (r *Replica) adoptReservation(e *sharedReservation, v *activeseq.Reservation, blockSize int) {
	table := r.tables.TableOf(v.Worker)
	if table == nil {
		return
	}
	w := *v
	w.PrefillTokens, w.OutputTokens = e.prefillTokens, e.publishedOutput
	w.PromptTokens = max(w.PromptTokens, e.prefillTokens)
	r.namedBlocks -= e.namedBlocks
	if blockSize != table.BlockSize() || r.namedBlocks+len(w.Chain) > r.maxNamed {
		w.Chain = nil
	}
	e.namedBlocks = len(w.Chain)
	r.namedBlocks += e.namedBlocks
	e.ref = table.AdoptReservation(r.now, w)
}

// advanceReservation updates the progress of a reservation, which never decreases.
func (p *peerState) advanceReservation(e *sharedReservation, left, output int) {
	output = max(output, e.publishedOutput)
	if left > 0 { // prefill is reported only when all of it is done
		left = e.prefillTokens
	}
	if left == e.prefillTokens && output == e.publishedOutput {
		return
	}
	p.hashSum -= e.digestHash()
	if left == 0 && e.prefillTokens > 0 {
		e.ref.MarkPrefilled()
	}
	if output > e.publishedOutput {
		e.ref.SetOutput(output)
	}
	e.prefillTokens, e.publishedOutput = left, output
	p.hashSum += e.digestHash()
}

func (p *peerState) removeReservation(e *sharedReservation) {
	p.hashSum -= e.digestHash()
	*p.namedBlocks -= e.namedBlocks
	e.ref.Free()
	delete(p.reservations, e.number)
}

// removeAll removes all reservations of the peer.
func (p *peerState) removeAll() {
	for _, number := range slices.Sorted(maps.Keys(p.reservations)) {
		p.removeReservation(p.reservations[number])
	}
}

// compareDigest compares a digest with the known reservations. A digest older than the known changes is
// ignored.
func (r *Replica) compareDigest(p *peerState, d digestBody) {
	r.recordHighest(p, d.through)
	switch {
	case p.nextSeq != d.through+1 || len(p.ahead) > 0:
	case d.count == uint64(len(p.reservations)) && d.sum == p.hashSum:
		p.lastAgreed = r.now
	case len(p.reservations) < maxReservations && !p.wantsList: // a full peer is known to differ
		r.stats.Mismatches++
		p.requestList(r.now)
	}
}

// applyPage applies a page: the reservations in its range of numbers are exactly the listed ones. A late page
// is older than the known changes, so it adds no reservations.
func (r *Replica) applyPage(p *peerState, m *message) {
	page := m.page
	late := page.asOf+1 < p.nextSeq
	var gone []uint64
	for number := range p.reservations { // collect only, then sort
		if number < page.from || number > page.to {
			continue
		}
		if _, there := slices.BinarySearchFunc(m.reservations, number, func(l listedReservation, n uint64) int { return cmp.Compare(l.number, n) }); !there {
			gone = append(gone, number)
		}
	}
	slices.Sort(gone)
	for _, number := range gone {
		p.removeReservation(p.reservations[number])
	}
	for i := range m.reservations {
		l := &m.reservations[i]
		if p.reservations[l.number] != nil || !late {
			r.countReservation(p, l.number, &l.reservation, l.blockSize)
		}
	}
	r.trackList(p, page, late)
}

// trackList tracks the pages which belong to one list.
func (r *Replica) trackList(p *peerState, page pageHeader, late bool) {
	r.recordHighest(p, page.asOf)
	switch {
	case late:
		return
	case page.from == 1:
		p.listSeq = page.listSeq
	case page.listSeq != p.listSeq || page.from != p.listedUpTo+1:
		return
	}
	p.listedUpTo = page.to
	p.nextRequest = max(p.nextRequest, r.now.Add(requestInterval)) // the next page is in transit
	if page.to < page.asOf {
		return
	}
	// No change up to the start of the list is missing any more.
	p.wantsList = false
	p.nextSeq = max(p.nextSeq, page.listSeq+1)
	p.advanceNext()
	if p.listSeq = 0; p.hasGap() { // a later gap is a new one
		p.gapSince, p.nextRequest = r.now, r.now.Add(reorderGrace)
	}
	r.stats.Healed++
}

// seqRanges are ranges of numbers, ascending, with a gap between any two.
type seqRanges []seqRange

// seqRange is the numbers from first to last.
type seqRange struct{ first, last uint64 }

func (s seqRanges) contains(n uint64) bool {
	for _, o := range s {
		if n <= o.last {
			return n >= o.first
		}
	}
	return false
}

// hasRoom reports whether there is room for a range.
func (s seqRanges) hasRoom(first, last uint64) bool {
	if len(s) < maxRanges {
		return true
	}
	return slices.ContainsFunc(s, func(o seqRange) bool { return first <= o.last+1 && o.first <= last+1 })
}

// addRange adds a range, and merges it with the ranges which it touches.
func (s *seqRanges) addRange(first, last uint64) {
	at := 0
	for at < len(*s) && (*s)[at].last+1 < first {
		at++
	}
	end := at
	for end < len(*s) && (*s)[end].first <= last+1 {
		first, last = min(first, (*s)[end].first), max(last, (*s)[end].last)
		end++
	}
	*s = slices.Replace(*s, at, end, seqRange{first, last})
}
