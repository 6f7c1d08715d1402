package replica

import (
	"cmp"
	"maps"
	"slices"

	"penstock/core/kv"
	"penstock/core/slots"
	"penstock/core/splitmix"
)

// peerState is another router.
type peer struct {
	router, epoch uint64
	heard, agreed kv.Mono

	// All changes below nextSeq are known, and the changes in ahead; highSeq is the last one known to exist.
	next, high uint64
	ahead      spans
	// early holds the content of changes in ahead for reservations whose opAdded, or page, has not arrived.
	early map[uint64]early

	entries map[uint64]*entry
	sum     uint64 // of their hashes

	// namedBlocks points to the number of counted blocks in the chains of all peers.
	named *int

	listing bool // a list is needed
	behind  kv.Mono
	askAt   kv.Mono
	list    uint64 // the list being read, up to listedUpTo
	listed  uint64
}

// earlyUpdate is what is known of a reservation before its opAdded has arrived.
type early struct {
	prefilled, freed bool
	output           int
}

// digestHash returns the hash which digests sum up for the reservation.
func (e *entry) hash() uint64 {
	h := splitmix.Mix(e.number + splitmix.Step)
	for _, v := range [...]uint64{uint64(e.worker.ID), uint64(e.worker.Rank), uint64(e.left), uint64(e.output)} {
		h = splitmix.Mix(h ^ v + splitmix.Step)
	}
	return h
}

// lookupPeer returns the state of another router in its latest epoch, and adds it if it is new. It returns
// nil for an earlier epoch, and if there are too many peers.
func (r *Replica) peer(router, epoch uint64) *peer {
	at, known := slices.BinarySearchFunc(r.peers, router, func(p *peer, id uint64) int { return cmp.Compare(p.router, id) })
	switch {
	case known && epoch < r.peers[at].epoch:
		return nil
	case known && epoch == r.peers[at].epoch:
		return r.peers[at]
	case known:
		r.peers[at].clear()
	case len(r.peers) == maxPeers:
		r.stats.Refused++
		return nil
	default:
		r.peers = slices.Insert(r.peers, at, nil)
		r.own.digests = r.now // it does not know this router either
	}
	r.peers[at] = &peer{router: router, epoch: epoch, heard: r.now, next: 1, named: &r.named, early: map[uint64]early{}, entries: map[uint64]*entry{}}
	return r.peers[at]
}

// hasGap reports whether changes are missing.
func (p *peer) lacking() bool { return p.listing || p.next <= p.high }

// lastMissing returns the last number which is missing.
func (p *peer) missing() uint64 {
	if last := len(p.ahead) - 1; last >= 0 && p.ahead[last].last == p.high {
		return p.ahead[last].first - 1
	}
	return p.high
}

// requestList schedules a request for the peer's list.
func (p *peer) suspect(now kv.Mono) {
	if !p.lacking() {
		p.behind, p.askAt = now, now
	}
	p.listing = true
}

// recordHighest records that there are changes up to a number.
func (r *Replica) exists(p *peer, last uint64) {
	lacked := p.lacking()
	p.high = max(p.high, last)
	if !lacked && p.lacking() {
		p.behind, p.askAt = r.now, r.now.Add(grace)
		r.stats.Holes++
	}
}

// applyBatch applies a batch.
func (r *Replica) changed(p *peer, m *message) {
	first, last := m.first, m.first+uint64(len(m.changes))-1
	if len(m.changes) == 0 || last < p.next {
		return
	}
	ordered := first <= p.next
	if !ordered && (!p.ahead.takes(first, last) || len(p.early)+len(m.changes) > maxEarly) {
		r.stats.Refused++
		r.exists(p, last)
		return // handled like a lost message
	}
	for i := range m.changes {
		c := &m.changes[i]
		seq := first + uint64(i)
		if seq < p.next || p.ahead.has(seq) {
			continue
		}
		r.apply(p, seq, c, !ordered)
	}
	p.ahead.add(first, last)
	p.advance()
	r.exists(p, last)
}

// advanceNext advances nextSeq past all changes which are known without a gap.
func (p *peer) advance() {
	for len(p.ahead) > 0 && p.ahead[0].first <= p.next {
		p.next = max(p.next, p.ahead[0].last+1)
		p.ahead = slices.Delete(p.ahead, 0, 1)
	}
	if len(p.ahead) == 0 {
		clear(p.early)
	}
}

// applyChange applies one change. If remember is set, the change is ahead of a gap, and its content is kept
// for a reservation whose opAdded arrives later.
func (r *Replica) apply(p *peer, seq uint64, c *change, remember bool) {
	number := seq - c.back
	if c.op == opAdd {
		number = seq
		r.take(p, number, &c.v, c.blockSize)
		return
	}
	if remember {
		was := p.early[number]
		was.prefilled = was.prefilled || c.op == opPrefilled
		was.freed = was.freed || c.op == opFree
		was.output = max(was.output, c.output)
		p.early[number] = was
	}
	e := p.entries[number]
	if e == nil {
		return
	}
	switch c.op {
	case opPrefilled:
		p.progress(e, 0, e.output)
	case opGrow:
		p.progress(e, e.left, c.output)
	case opFree:
		p.drop(e)
	}
}

// countReservation counts a new reservation, or updates a known one.
func (r *Replica) take(p *peer, number uint64, v *slots.Reservation, blockSize int) {
	was := p.early[number]
	if was.freed {
		return
	}
	left, output := v.PrefillTokens, max(v.OutputTokens, was.output)
	if was.prefilled {
		left = 0
	}
	e := p.entries[number]
	if e != nil && e.worker != v.Worker { // reservations never move: two routers have the same id
		p.drop(e)
		e = nil
	}
	if e == nil {
		if len(p.entries) == maxEntries {
			r.stats.Refused++
			return
		}
		e = &entry{number: number, worker: v.Worker, left: left, output: output}
		p.entries[number] = e
		p.sum += e.hash()
	}
	p.progress(e, left, output)
	if _, placed := e.ref.View(); !placed {
		r.place(e, v, blockSize)
	}
}

// adoptReservation counts a reservation at its worker, if the worker is known here. A prompt whose router
// uses another block size shares no blocks. Neither does one whose chain would exceed the limit of named
// blocks.
func (r *Replica) place(e *entry, v *slots.Reservation, blockSize int) {
	table := r.tables.Table(v.Worker)
	if table == nil {
		return
	}
	w := *v
	w.PrefillTokens, w.OutputTokens = e.left, e.output
	w.PromptTokens = max(w.PromptTokens, e.left)
	r.named -= e.named
	if blockSize != table.BlockSize() || r.named+len(w.Chain) > r.mostNamed {
		w.Chain = nil
	}
	e.named = len(w.Chain)
	r.named += e.named
	e.ref = table.Adopt(r.now, w)
}

// advanceReservation updates the progress of a reservation, which never decreases.
func (p *peer) progress(e *entry, left, output int) {
	output = max(output, e.output)
	if left > 0 { // prefill is reported only when all of it is done
		left = e.left
	}
	if left == e.left && output == e.output {
		return
	}
	p.sum -= e.hash()
	if left == 0 && e.left > 0 {
		e.ref.Prefilled()
	}
	if output > e.output {
		e.ref.Output(output)
	}
	e.left, e.output = left, output
	p.sum += e.hash()
}

func (p *peer) drop(e *entry) {
	p.sum -= e.hash()
	*p.named -= e.named
	e.ref.Free()
	delete(p.entries, e.number)
}

// removeAll removes all reservations of the peer.
func (p *peer) clear() {
	for _, number := range slices.Sorted(maps.Keys(p.entries)) {
		p.drop(p.entries[number])
	}
}

// compareDigest compares a digest with the known reservations. A digest older than the known changes is
// ignored.
func (r *Replica) compare(p *peer, d digestOf) {
	r.exists(p, d.through)
	switch {
	case p.next != d.through+1 || len(p.ahead) > 0:
	case d.count == uint64(len(p.entries)) && d.sum == p.sum:
		p.agreed = r.now
	case len(p.entries) < maxEntries && !p.listing: // a full peer is known to differ
		r.stats.Mismatches++
		p.suspect(r.now)
	}
}

// applyPage applies a page: the reservations in its range of numbers are exactly the listed ones. A late page
// is older than the known changes, so it adds no reservations.
func (r *Replica) turn(p *peer, m *message) {
	page := m.page
	late := page.asOf+1 < p.next
	var gone []uint64
	for number := range p.entries { // collect only, then sort
		if number < page.from || number > page.to {
			continue
		}
		if _, there := slices.BinarySearchFunc(m.listed, number, func(l listed, n uint64) int { return cmp.Compare(l.number, n) }); !there {
			gone = append(gone, number)
		}
	}
	slices.Sort(gone)
	for _, number := range gone {
		p.drop(p.entries[number])
	}
	for i := range m.listed {
		l := &m.listed[i]
		if p.entries[l.number] != nil || !late {
			r.take(p, l.number, &l.v, l.blockSize)
		}
	}
	r.follow(p, page, late)
}

// trackList tracks the pages which belong to one list.
func (r *Replica) follow(p *peer, page pageOf, late bool) {
	r.exists(p, page.asOf)
	switch {
	case late:
		return
	case page.from == 1:
		p.list = page.list
	case page.list != p.list || page.from != p.listed+1:
		return
	}
	p.listed = page.to
	p.askAt = max(p.askAt, r.now.Add(askEvery)) // the next page is in transit
	if page.to < page.asOf {
		return
	}
	// No change up to the start of the list is missing any more.
	p.listing = false
	p.next = max(p.next, page.list+1)
	p.advance()
	if p.list = 0; p.lacking() { // a later gap is a new one
		p.behind, p.askAt = r.now, r.now.Add(grace)
	}
	r.stats.Healed++
}
