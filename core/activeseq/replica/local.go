package replica

import (
	"cmp"
	"encoding/binary"
	"slices"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// localState is what this router publishes about its own reservations.
type localState struct {
	lastSeq      uint64              // number of the last change
	reservations []sharedReservation // ascending by number; ended ones stay until there are many
	endedCount   int
	activeCount  int    // of reservations which have not ended
	hashSum      uint64 // of their hashes, as published

	growing    []uint64 // reservations with growth which was not published yet
	nextGrowth kv.Mono  // when it will be

	openBatch   batch // batch being filled, since opened
	opened      kv.Mono
	keptBatches []batch        // the latest ones
	sentBatches int            // how many of them were sent
	keptBytes   int            // of keptBatches
	nextDigest  kv.Mono        // when the next one is due
	requests    []rangeRequest // missing ranges of other routers
	nextAnswer  kv.Mono        // when they are next answered, and a page of a list is due

	listing    bool   // a list is being sent
	relist     bool   // a router which missed its start asked for a list
	listSeq    uint64 // identifies the list: number of the last change when it was started
	listedUpTo uint64 // the numbers up to this one were listed
}

// sharedReservation is a reservation as other routers know it.
type sharedReservation struct {
	number          uint64
	worker          kv.Worker
	prefillTokens   int // of the prompt, still to be computed
	publishedOutput int // tokens, as published
	localOutput     int // own reservations: tokens, published or not
	namedBlocks     int // other routers' reservations: counted blocks of the chain
	ref             activeseq.ReservationRef
	ended           bool
}

// batch is a message of changes with consecutive numbers.
type batch struct {
	first  uint64
	count  int
	data   []byte
	resent kv.Mono // when it was last sent again
}

func (b *batch) lastSeq() uint64 { return b.first + uint64(b.count) - 1 }

// findReservation returns the reservation with the given number, nil if it has ended.
func (o *localState) findReservation(number uint64) *sharedReservation {
	at, ok := slices.BinarySearchFunc(o.reservations, number, func(e sharedReservation, n uint64) int { return cmp.Compare(e.number, n) })
	if !ok || o.reservations[at].ended {
		return nil
	}
	return &o.reservations[at]
}

// OnReserved implements activeseq.Journal.
func (r *Replica) OnReserved(ref activeseq.ReservationRef) uint64 {
	o := &r.local
	o.lastSeq++
	v, _ := ref.Reservation()
	o.reservations = append(o.reservations, sharedReservation{number: o.lastSeq, worker: v.Worker, prefillTokens: capTokens(v.PrefillTokens), ref: ref})
	o.activeCount++
	o.hashSum += o.reservations[len(o.reservations)-1].digestHash()
	if r.beginChange(maxAddSize(&v)) {
		o.openBatch.data = appendReservation(o.openBatch.data, &v, ref.BlockSize())
		r.endChange()
	}
	return o.lastSeq
}

// OnPrefilled implements activeseq.Journal.
func (r *Replica) OnPrefilled(number uint64) {
	o := &r.local
	e := o.findReservation(number)
	if e == nil {
		return
	}
	o.lastSeq++
	o.hashSum -= e.digestHash()
	e.prefillTokens = 0
	o.hashSum += e.digestHash()
	if r.beginChange(maxChangeSize) {
		o.openBatch.data = appendChange(o.openBatch.data, opPrefilled, o.lastSeq-number)
		r.endChange()
	}
}

// OnGrown implements activeseq.Journal.
func (r *Replica) OnGrown(number uint64, output int) {
	o := &r.local
	e := o.findReservation(number)
	if e == nil {
		return
	}
	if output = capTokens(output); output <= e.localOutput {
		return
	}
	if e.localOutput == e.publishedOutput {
		if len(o.growing) == 0 {
			o.nextGrowth = max(o.nextGrowth, r.now)
		}
		o.growing = append(o.growing, number)
	}
	e.localOutput = output
}

// OnFreed implements activeseq.Journal.
func (r *Replica) OnFreed(number uint64) {
	o := &r.local
	e := o.findReservation(number)
	if e == nil {
		return
	}
	o.lastSeq++
	o.hashSum -= e.digestHash()
	o.activeCount--
	e.ended, e.ref = true, activeseq.ReservationRef{}
	o.endedCount++
	if o.endedCount > len(o.reservations)/2+32 {
		o.reservations = slices.DeleteFunc(o.reservations, func(e sharedReservation) bool { return e.ended })
		o.endedCount = 0
	}
	if r.beginChange(maxChangeSize) {
		o.openBatch.data = appendChange(o.openBatch.data, opFreed, o.lastSeq-number)
		r.endChange()
	}
}

// publishGrowth numbers the growth since the last call.
func (r *Replica) publishGrowth() {
	o := &r.local
	for _, number := range o.growing {
		e := o.findReservation(number)
		if e == nil {
			continue
		}
		o.lastSeq++
		o.hashSum -= e.digestHash()
		e.publishedOutput = e.localOutput
		o.hashSum += e.digestHash()
		if r.beginChange(2 * maxChangeSize) {
			o.openBatch.data = binary.AppendUvarint(appendChange(o.openBatch.data, opGrown, o.lastSeq-number), uint64(e.publishedOutput))
			r.endChange()
		}
	}
	o.growing = o.growing[:0]
	o.nextGrowth = r.now.Add(growthInterval)
}

// beginChange makes room for a change of at most size bytes, whose number was already assigned. It reports
// whether the change is to be published: it is not while there are no other routers. A router which joins
// will ask for a list.
func (r *Replica) beginChange(size int) bool {
	o := &r.local
	if len(r.peers) == 0 {
		o.keptBatches, o.sentBatches, o.keptBytes = nil, 0, 0
		o.openBatch = batch{}
		return false
	}
	if o.openBatch.count > 0 && len(o.openBatch.data)+size > batchBytes {
		r.closeBatch()
	}
	if o.openBatch.count == 0 {
		o.opened = r.now
		o.openBatch = batch{first: o.lastSeq, data: appendChanges(appendHeader(make([]byte, 0, countAt+2+size+256), kindChanges, r.cfg.Router, r.cfg.Epoch), o.lastSeq)}
	}
	return true
}

// endChange counts the change which was appended.
func (r *Replica) endChange() {
	r.local.openBatch.count++
	r.stats.Changes++
	if r.local.openBatch.count == maxChanges {
		r.closeBatch()
	}
}

// closeBatch moves the open batch to keptBatches.
func (r *Replica) closeBatch() {
	o := &r.local
	if o.openBatch.count == 0 {
		return
	}
	setCount(o.openBatch.data, o.openBatch.count)
	r.stats.Batches++
	o.keptBatches = append(o.keptBatches, o.openBatch)
	o.keptBytes += len(o.openBatch.data)
	o.openBatch = batch{}
	for o.keptBytes > maxKeptBytes {
		o.keptBytes -= len(o.keptBatches[0].data)
		o.keptBatches = slices.Delete(o.keptBatches, 0, 1)
		if o.sentBatches == 0 {
			r.stats.Unsent++
			continue
		}
		o.sentBatches--
	}
}

// nextDeadline returns when appendDue has something to do.
func (o *localState) nextDeadline(r *Replica) kv.Mono {
	at := o.nextDigest
	if o.openBatch.count > 0 {
		at = min(at, o.opened.Add(r.cfg.Delay))
	}
	if o.sentBatches < len(o.keptBatches) {
		return min(at, r.now)
	}
	if len(o.growing) > 0 {
		at = min(at, o.nextGrowth)
	}
	if o.listing || len(o.requests) > 0 {
		at = min(at, o.nextAnswer)
	}
	return at
}

// appendDue appends to out this router's own messages which are due.
func (o *localState) appendDue(r *Replica, out [][]byte) [][]byte {
	if len(o.growing) > 0 && r.now >= o.nextGrowth {
		r.publishGrowth()
	}
	digest := r.now >= o.nextDigest
	answer := r.now >= o.nextAnswer && (o.listing || len(o.requests) > 0)
	if digest || answer || o.openBatch.count > 0 && r.now.Sub(o.opened) >= r.cfg.Delay {
		r.closeBatch() // a digest or page must follow the changes which it includes
	}
	for ; o.sentBatches < len(o.keptBatches); o.sentBatches++ {
		out = append(out, o.keptBatches[o.sentBatches].data)
	}
	if digest {
		o.nextDigest = r.now.Add(r.cfg.DigestEvery)
		out = append(out, appendDigest(appendHeader(nil, kindDigest, r.cfg.Router, r.cfg.Epoch), digestBody{o.lastSeq, uint64(o.activeCount), o.hashSum}))
	}
	if answer {
		out = o.appendAnswers(r, out)
		o.nextAnswer = r.now.Add(answerInterval)
	}
	return out
}

// queueRequest records a request for missing changes, or for a list if the changes are no longer kept.
func (o *localState) queueRequest(w rangeRequest) {
	switch {
	case w.from == 0 || len(o.keptBatches) == 0 || w.from < o.keptBatches[0].first:
		if o.relist = o.listing && o.listedUpTo > 0; !o.listing {
			o.listing, o.listSeq, o.listedUpTo = true, o.lastSeq, 0
		}
	case len(o.requests) < maxRequests:
		o.requests = append(o.requests, w)
	}
}

// appendAnswers appends to out what others asked for, up to a bound; the rest is for later.
func (o *localState) appendAnswers(r *Replica, out [][]byte) [][]byte {
	bytes := 0
	for len(o.requests) > 0 && bytes < answerBytes {
		w := &o.requests[0]
		at, _ := slices.BinarySearchFunc(o.keptBatches, w.from, func(b batch, n uint64) int { return cmp.Compare(b.lastSeq(), n) })
		if at == len(o.keptBatches) || o.keptBatches[at].first > w.to {
			o.requests = slices.Delete(o.requests, 0, 1)
			continue
		}
		b := &o.keptBatches[at]
		w.from = b.lastSeq() + 1
		if b.resent == 0 || r.now.Sub(b.resent) >= resendInterval {
			b.resent = r.now
			bytes += len(b.data)
			out = append(out, b.data)
			r.stats.Resent++
		}
	}
	for o.listing && bytes < answerBytes {
		p := r.nextPage()
		bytes += len(p)
		out = append(out, p)
	}
	return out
}

// nextPage returns the next page of the list.
func (r *Replica) nextPage() []byte {
	o := &r.local
	p := pageHeader{listSeq: o.listSeq, asOf: o.lastSeq, from: o.listedUpTo + 1, to: o.lastSeq}
	at, _ := slices.BinarySearchFunc(o.reservations, p.from, func(e sharedReservation, n uint64) int { return cmp.Compare(e.number, n) })
	var body []byte
	n := 0
	for ; at < len(o.reservations); at++ {
		e := &o.reservations[at]
		if e.ended {
			continue
		}
		v, _ := e.ref.Reservation()
		v.PrefillTokens, v.OutputTokens = e.prefillTokens, e.publishedOutput
		if n == maxListed || n > 0 && len(body)+maxAddSize(&v) > pageBytes {
			p.to = e.number - 1
			break
		}
		body = binary.AppendUvarint(body, e.number-p.from)
		body = appendReservation(body, &v, e.ref.BlockSize())
		body = binary.AppendUvarint(body, uint64(e.publishedOutput))
		n++
	}
	if o.listedUpTo = p.to; p.to == p.asOf { // the last one
		o.listing, o.relist, o.listSeq, o.listedUpTo = o.relist, false, o.lastSeq, 0
	}
	r.stats.Pages++
	return append(appendPage(appendHeader(nil, kindPage, r.cfg.Router, r.cfg.Epoch), p, n), body...)
}
