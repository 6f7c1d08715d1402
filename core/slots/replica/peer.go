package replica

import (
	"cmp"
	"maps"
	"slices"

	"penstock/core/kv"
	"penstock/core/slots"
	"penstock/core/splitmix"
)

// peer is another router.
type peer struct {
	router, epoch uint64
	heard, agreed kv.Mono

	// All changes below next are known, and those in ahead; high is the last one that is
	// known to exist.
	next, high uint64
	ahead      spans
	// early is what changes in ahead said of reservations that were made, or may be
	// listed, before them.
	early map[uint64]early

	entries map[uint64]*entry
	sum     uint64 // of their hashes

	// named counts the blocks of chains that are counted for others, of all peers.
	named *int

	listing bool // a list is wanted
	behind  kv.Mono
	askAt   kv.Mono
	list    uint64 // the list that is being read, up to listed
	listed  uint64
}

// early is what is known of a reservation whatever comes of it later.
type early struct {
	prefilled, freed bool
	output           int
}

// hash is of what a digest sums up of the reservation.
func (e *entry) hash() uint64 {
	h := splitmix.Mix(e.number + splitmix.Step)
	for _, v := range [...]uint64{uint64(e.worker.ID), uint64(e.worker.Rank), uint64(e.left), uint64(e.output)} {
		h = splitmix.Mix(h ^ v + splitmix.Step)
	}
	return h
}

// peer returns the other router, in its latest life: nil for an earlier one, and
// if there are too many.
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
		r.own.digests = r.now // it does not know of us either
	}
	r.peers[at] = &peer{router: router, epoch: epoch, heard: r.now, next: 1, named: &r.named, early: map[uint64]early{}, entries: map[uint64]*entry{}}
	return r.peers[at]
}

// lacking reports whether something is missing.
func (p *peer) lacking() bool { return p.listing || p.next <= p.high }

// missing returns the last number that is missing.
func (p *peer) missing() uint64 {
	if last := len(p.ahead) - 1; last >= 0 && p.ahead[last].last == p.high {
		return p.ahead[last].first - 1
	}
	return p.high
}

// suspect has the peer asked for a list.
func (p *peer) suspect(now kv.Mono) {
	if !p.lacking() {
		p.behind, p.askAt = now, now
	}
	p.listing = true
}

// exists notes that there are changes up to a number.
func (r *Replica) exists(p *peer, last uint64) {
	lacked := p.lacking()
	p.high = max(p.high, last)
	if !lacked && p.lacking() {
		p.behind, p.askAt = r.now, r.now.Add(grace)
		r.stats.Holes++
	}
}

// changed applies a batch.
func (r *Replica) changed(p *peer, m *message) {
	first, last := m.first, m.first+uint64(len(m.changes))-1
	if len(m.changes) == 0 || last < p.next {
		return
	}
	ordered := first <= p.next
	if !ordered && (!p.ahead.takes(first, last) || len(p.early)+len(m.changes) > maxEarly) {
		r.stats.Refused++
		r.exists(p, last)
		return // as if it were lost
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

// advance moves next behind all that is known without a hole.
func (p *peer) advance() {
	for len(p.ahead) > 0 && p.ahead[0].first <= p.next {
		p.next = max(p.next, p.ahead[0].last+1)
		p.ahead = slices.Delete(p.ahead, 0, 1)
	}
	if len(p.ahead) == 0 {
		clear(p.early)
	}
}

// apply does one change. What one behind a hole says is remembered for a reservation
// that is told of only later.
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

// take counts a reservation, or what is new of one that is known.
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
	if e != nil && e.worker != v.Worker { // nobody moves one: two routers have one id
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

// place counts a reservation at its worker, if that is known here. A prompt that its
// router cuts into other blocks shares none, nor do those that name more blocks than are
// remembered.
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

// progress brings a reservation forward; it never goes back.
func (p *peer) progress(e *entry, left, output int) {
	output = max(output, e.output)
	if left > 0 { // prompts are computed as a whole
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

// clear ends all reservations of the peer.
func (p *peer) clear() {
	for _, number := range slices.Sorted(maps.Keys(p.entries)) {
		p.drop(p.entries[number])
	}
}

// compare holds a digest against what is known. One of which more is known already says
// nothing.
func (r *Replica) compare(p *peer, d digestOf) {
	r.exists(p, d.through)
	switch {
	case p.next != d.through+1 || len(p.ahead) > 0:
	case d.count == uint64(len(p.entries)) && d.sum == p.sum:
		p.agreed = r.now
	case len(p.entries) < maxEntries && !p.listing: // beyond that it is known to differ
		r.stats.Mismatches++
		p.suspect(r.now)
	}
}

// turn takes over a page: of the numbers in its range there are those that it has, and no
// others. One that was late knows less of what is new than is known here.
func (r *Replica) turn(p *peer, m *message) {
	page := m.page
	late := page.asOf+1 < p.next
	var gone []uint64
	for number := range p.entries { // which alone, and then in order
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

// follow keeps account of the pages that belong to one list.
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
	p.askAt = max(p.askAt, r.now.Add(askEvery)) // the next page is on its way
	if page.to < page.asOf {
		return
	}
	// Of what the first page knew, nothing is missing.
	p.listing = false
	p.next = max(p.next, page.list+1)
	p.advance()
	if p.list = 0; p.lacking() { // a hole behind it is another one
		p.behind, p.askAt = r.now, r.now.Add(grace)
	}
	r.stats.Healed++
}
