package slots

// keepChain is the longest chain, in blocks, whose memory a vacant record keeps. The record of a longer chain
// releases it, so that a few huge prompts do not keep the table large forever.
const keepChain = 4096

// takeVacant returns a vacant index.
func (t *Table) take() int32 {
	if last := len(t.vacant) - 1; last >= 0 {
		at := t.vacant[last]
		t.vacant = t.vacant[:last]
		return at
	}
	t.requests = append(t.requests, request{})
	return int32(len(t.requests) - 1)
}

// makeVacant makes an index vacant.
func (t *Table) give(at int32) {
	chain := t.requests[at].chain[:0]
	if cap(chain) > keepChain {
		chain = nil
	}
	t.requests[at] = request{chain: chain, older: none, newer: none, life: t.requests[at].life + 1}
	t.vacant = append(t.vacant, at)
}

// appendNewest makes the request at an index the newest. A request with an earlier time than the newest takes
// the newest's time, because the list is ordered by time.
func (t *Table) link(at int32) {
	r := &t.requests[at]
	r.older, r.newer = t.newest, none
	if t.newest == none {
		t.oldest = at
	} else {
		prev := &t.requests[t.newest]
		prev.newer = at
		r.at = max(r.at, prev.at)
	}
	t.newest = at
}

func (t *Table) unlink(at int32) {
	r := &t.requests[at]
	if r.older == none {
		t.oldest = r.newer
	} else {
		t.requests[r.older].newer = r.newer
	}
	if r.newer == none {
		t.newest = r.older
	} else {
		t.requests[r.newer].older = r.older
	}
}

// enqueuePrefill appends the request at an index to its worker's queue of prefills.
func (t *Table) enqueue(at int32) {
	r := &t.requests[at]
	wk := r.worker
	r.earlier, r.later = wk.last, none
	if wk.last == none {
		wk.first, wk.since = at, t.now
	} else {
		t.requests[wk.last].later = at
	}
	wk.last = at
}

// dequeuePrefill removes it. The clock of the next prefill starts when it becomes the first.
func (t *Table) dequeue(at int32) {
	r := &t.requests[at]
	wk := r.worker
	if r.earlier == none {
		wk.first, wk.since = r.later, t.now
	} else {
		t.requests[r.earlier].later = r.later
	}
	if r.later == none {
		wk.last = r.earlier
	} else {
		t.requests[r.later].earlier = r.earlier
	}
}
