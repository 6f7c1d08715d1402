package replica

import (
	"cmp"
	"encoding/binary"
	"slices"

	"penstock/core/kv"
	"penstock/core/slots"
)

// localState is what this router publishes about its own reservations.
type own struct {
	seq   uint64  // number of the last change
	made  []entry // ascending by number; ended ones stay until there are many
	dead  int
	count int    // of reservations which have not ended
	sum   uint64 // of their hashes, as published

	grown  []uint64 // reservations with growth which was not published yet
	growAt kv.Mono  // when it will be

	open    batch // batch being filled, since opened
	opened  kv.Mono
	kept    []batch // the latest ones
	sent    int     // how many of them were sent
	bytes   int     // of keptBatches
	digests kv.Mono // when the next one is due
	asks    []want  // missing ranges of other routers
	answers kv.Mono // when they are next answered, and a page of a list is due

	listing bool   // a list is being sent
	again   bool   // a router which missed its start asked for a list
	list    uint64 // identifies the list: number of the last change when it was started
	listed  uint64 // the numbers up to this one were listed
}

// sharedReservation is a reservation as other routers know it.
type entry struct {
	number uint64
	worker kv.Worker
	left   int // of the prompt, still to be computed
	output int // tokens, as published
	grown  int // own reservations: tokens, published or not
	named  int // other routers' reservations: counted blocks of the chain
	ref    slots.Ref
	ended  bool
}

// batch is a message of changes with consecutive numbers.
type batch struct {
	first uint64
	n     int
	data  []byte
	again kv.Mono // when it was last sent again
}

func (b *batch) last() uint64 { return b.first + uint64(b.n) - 1 }

// findReservation returns the reservation with the given number, nil if it has ended.
func (o *own) find(number uint64) *entry {
	at, ok := slices.BinarySearchFunc(o.made, number, func(e entry, n uint64) int { return cmp.Compare(e.number, n) })
	if !ok || o.made[at].ended {
		return nil
	}
	return &o.made[at]
}

// OnReserved implements activeseq.Journal.
func (r *Replica) Reserved(ref slots.Ref) uint64 {
	o := &r.own
	o.seq++
	v, _ := ref.View()
	o.made = append(o.made, entry{number: o.seq, worker: v.Worker, left: tokens(v.PrefillTokens), ref: ref})
	o.count++
	o.sum += o.made[len(o.made)-1].hash()
	if r.begin(addSize(&v)) {
		o.open.data = appendAdd(o.open.data, &v, ref.BlockSize())
		r.end()
	}
	return o.seq
}

// OnPrefilled implements activeseq.Journal.
func (r *Replica) Prefilled(number uint64) {
	o := &r.own
	e := o.find(number)
	if e == nil {
		return
	}
	o.seq++
	o.sum -= e.hash()
	e.left = 0
	o.sum += e.hash()
	if r.begin(backSize) {
		o.open.data = appendBack(o.open.data, opPrefilled, o.seq-number)
		r.end()
	}
}

// OnGrown implements activeseq.Journal.
func (r *Replica) Grown(number uint64, output int) {
	o := &r.own
	e := o.find(number)
	if e == nil {
		return
	}
	if output = tokens(output); output <= e.grown {
		return
	}
	if e.grown == e.output {
		if len(o.grown) == 0 {
			o.growAt = max(o.growAt, r.now)
		}
		o.grown = append(o.grown, number)
	}
	e.grown = output
}

// OnFreed implements activeseq.Journal.
func (r *Replica) Freed(number uint64) {
	o := &r.own
	e := o.find(number)
	if e == nil {
		return
	}
	o.seq++
	o.sum -= e.hash()
	o.count--
	e.ended, e.ref = true, slots.Ref{}
	o.dead++
	if o.dead > len(o.made)/2+32 {
		o.made = slices.DeleteFunc(o.made, func(e entry) bool { return e.ended })
		o.dead = 0
	}
	if r.begin(backSize) {
		o.open.data = appendBack(o.open.data, opFree, o.seq-number)
		r.end()
	}
}

// publishGrowth numbers the growth since the last call.
func (r *Replica) tellGrowth() {
	o := &r.own
	for _, number := range o.grown {
		e := o.find(number)
		if e == nil {
			continue
		}
		o.seq++
		o.sum -= e.hash()
		e.output = e.grown
		o.sum += e.hash()
		if r.begin(2 * backSize) {
			o.open.data = binary.AppendUvarint(appendBack(o.open.data, opGrow, o.seq-number), uint64(e.output))
			r.end()
		}
	}
	o.grown = o.grown[:0]
	o.growAt = r.now.Add(growEvery)
}

// beginChange makes room for a change of at most size bytes, whose number was already assigned. It reports
// whether the change is to be published: it is not while there are no other routers. A router which joins
// will ask for a list.
func (r *Replica) begin(size int) bool {
	o := &r.own
	if len(r.peers) == 0 {
		o.kept, o.sent, o.bytes = nil, 0, 0
		o.open = batch{}
		return false
	}
	if o.open.n > 0 && len(o.open.data)+size > batchBytes {
		r.shut()
	}
	if o.open.n == 0 {
		o.opened = r.now
		o.open = batch{first: o.seq, data: appendChanges(appendHeader(make([]byte, 0, countAt+2+size+256), kindChanges, r.cfg.Router, r.cfg.Epoch), o.seq)}
	}
	return true
}

// endChange counts the change which was appended.
func (r *Replica) end() {
	r.own.open.n++
	r.stats.Changes++
	if r.own.open.n == maxChanges {
		r.shut()
	}
}

// closeBatch moves the open batch to keptBatches.
func (r *Replica) shut() {
	o := &r.own
	if o.open.n == 0 {
		return
	}
	setCount(o.open.data, o.open.n)
	r.stats.Batches++
	o.kept = append(o.kept, o.open)
	o.bytes += len(o.open.data)
	o.open = batch{}
	for o.bytes > keepBytes {
		o.bytes -= len(o.kept[0].data)
		o.kept = slices.Delete(o.kept, 0, 1)
		if o.sent == 0 {
			r.stats.Unsent++
			continue
		}
		o.sent--
	}
}

// nextDeadline returns when appendDue has something to do.
func (o *own) next(r *Replica) kv.Mono {
	at := o.digests
	if o.open.n > 0 {
		at = min(at, o.opened.Add(r.cfg.Delay))
	}
	if o.sent < len(o.kept) {
		return min(at, r.now)
	}
	if len(o.grown) > 0 {
		at = min(at, o.growAt)
	}
	if o.listing || len(o.asks) > 0 {
		at = min(at, o.answers)
	}
	return at
}

// appendDue appends to out this router's own messages which are due.
func (o *own) step(r *Replica, out [][]byte) [][]byte {
	if len(o.grown) > 0 && r.now >= o.growAt {
		r.tellGrowth()
	}
	digest := r.now >= o.digests
	answer := r.now >= o.answers && (o.listing || len(o.asks) > 0)
	if digest || answer || o.open.n > 0 && r.now.Sub(o.opened) >= r.cfg.Delay {
		r.shut() // a digest or page must follow the changes which it includes
	}
	for ; o.sent < len(o.kept); o.sent++ {
		out = append(out, o.kept[o.sent].data)
	}
	if digest {
		o.digests = r.now.Add(r.cfg.DigestEvery)
		out = append(out, appendDigest(appendHeader(nil, kindDigest, r.cfg.Router, r.cfg.Epoch), digestOf{o.seq, uint64(o.count), o.sum}))
	}
	if answer {
		out = o.answer(r, out)
		o.answers = r.now.Add(pace)
	}
	return out
}

// queueRequest records a request for missing changes, or for a list if the changes are no longer kept.
func (o *own) asked(w want) {
	switch {
	case w.from == 0 || len(o.kept) == 0 || w.from < o.kept[0].first:
		if o.again = o.listing && o.listed > 0; !o.listing {
			o.listing, o.list, o.listed = true, o.seq, 0
		}
	case len(o.asks) < maxAsks:
		o.asks = append(o.asks, w)
	}
}

// appendAnswers appends to out what others asked for, up to a bound; the rest is for later.
func (o *own) answer(r *Replica, out [][]byte) [][]byte {
	bytes := 0
	for len(o.asks) > 0 && bytes < answerBytes {
		w := &o.asks[0]
		at, _ := slices.BinarySearchFunc(o.kept, w.from, func(b batch, n uint64) int { return cmp.Compare(b.last(), n) })
		if at == len(o.kept) || o.kept[at].first > w.to {
			o.asks = slices.Delete(o.asks, 0, 1)
			continue
		}
		b := &o.kept[at]
		w.from = b.last() + 1
		if b.again == 0 || r.now.Sub(b.again) >= resendEvery {
			b.again = r.now
			bytes += len(b.data)
			out = append(out, b.data)
			r.stats.Resent++
		}
	}
	for o.listing && bytes < answerBytes {
		p := r.page()
		bytes += len(p)
		out = append(out, p)
	}
	return out
}

// nextPage returns the next page of the list.
func (r *Replica) page() []byte {
	o := &r.own
	p := pageOf{list: o.list, asOf: o.seq, from: o.listed + 1, to: o.seq}
	at, _ := slices.BinarySearchFunc(o.made, p.from, func(e entry, n uint64) int { return cmp.Compare(e.number, n) })
	var body []byte
	n := 0
	for ; at < len(o.made); at++ {
		e := &o.made[at]
		if e.ended {
			continue
		}
		v, _ := e.ref.View()
		v.PrefillTokens, v.OutputTokens = e.left, e.output
		if n == maxListed || n > 0 && len(body)+addSize(&v) > pageBytes {
			p.to = e.number - 1
			break
		}
		body = binary.AppendUvarint(body, e.number-p.from)
		body = appendAdd(body, &v, e.ref.BlockSize())
		body = binary.AppendUvarint(body, uint64(e.output))
		n++
	}
	if o.listed = p.to; p.to == p.asOf { // the last one
		o.listing, o.again, o.list, o.listed = o.again, false, o.seq, 0
	}
	r.stats.Pages++
	return append(appendPage(appendHeader(nil, kindPage, r.cfg.Router, r.cfg.Epoch), p, n), body...)
}
