package activeseq

// keepChain is the longest chain, in blocks, whose memory a vacant record keeps. The record of a longer chain
// releases it, so that a few huge prompts do not keep the table large forever.
const keepChain = 4096

// takeVacant returns a vacant index.
func (t *ReservationTable) takeVacant() int32 {
	if last := len(t.vacant) - 1; last >= 0 {
		at := t.vacant[last]
		t.vacant = t.vacant[:last]
		return at
	}
	t.records = append(t.records, reservationRecord{})
	return int32(len(t.records) - 1)
}

// makeVacant makes an index vacant.
func (t *ReservationTable) makeVacant(at int32) {
	chain := t.records[at].chain[:0]
	if cap(chain) > keepChain {
		chain = nil
	}
	t.records[at] = reservationRecord{chain: chain, older: noIndex, newer: noIndex, generation: t.records[at].generation + 1}
	t.vacant = append(t.vacant, at)
}

// appendNewest makes the request at an index the newest. A request with an earlier time than the newest takes
// the newest's time, because the list is ordered by time.
func (t *ReservationTable) appendNewest(at int32) {
	r := &t.records[at]
	r.older, r.newer = t.newest, noIndex
	if t.newest == noIndex {
		t.oldest = at
	} else {
		prev := &t.records[t.newest]
		prev.newer = at
		r.renewed = max(r.renewed, prev.renewed)
	}
	t.newest = at
}

func (t *ReservationTable) unlinkByAge(at int32) {
	r := &t.records[at]
	if r.older == noIndex {
		t.oldest = r.newer
	} else {
		t.records[r.older].newer = r.newer
	}
	if r.newer == noIndex {
		t.newest = r.older
	} else {
		t.records[r.newer].older = r.older
	}
}

// enqueuePrefill appends the request at an index to its worker's queue of prefills.
func (t *ReservationTable) enqueuePrefill(at int32) {
	r := &t.records[at]
	wk := r.worker
	wk.prefills++
	r.prevPrefill, r.nextPrefill = wk.lastPrefill, noIndex
	if wk.lastPrefill == noIndex {
		wk.firstPrefill, wk.firstSince = at, t.time
	} else {
		t.records[wk.lastPrefill].nextPrefill = at
	}
	wk.lastPrefill = at
}

// dequeuePrefill removes it. The clock of the next prefill starts when it becomes the first.
func (t *ReservationTable) dequeuePrefill(at int32) {
	r := &t.records[at]
	wk := r.worker
	wk.prefills--
	if r.prevPrefill == noIndex {
		wk.firstPrefill, wk.firstSince = r.nextPrefill, t.time
	} else {
		t.records[r.prevPrefill].nextPrefill = r.nextPrefill
	}
	if r.nextPrefill == noIndex {
		wk.lastPrefill = r.prevPrefill
	} else {
		t.records[r.nextPrefill].prevPrefill = r.prevPrefill
	}
}
