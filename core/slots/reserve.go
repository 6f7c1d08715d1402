package slots

import (
	"penstock/core/fault"
	"penstock/core/kv"
)

// Reserve counts a request against w until Free. It fails with Conflict if the key is already reserved, on
// any worker. The table keeps a copy of the chain. It also frees the reservations which are older than the
// TTL.
func (t *Table) Reserve(now kv.Mono, key Key, w kv.Worker, d Demand) error {
	t.Expire(now)
	if _, ok := t.byKey[key]; ok {
		return fault.New(fault.Conflict, "attempt %d of request %.100q is active already; give every attempt its own number", key.Attempt, key.ID)
	}
	if d.PromptTokens < 0 || d.OverlapBlocks < 0 || d.ExpectedOutput < 0 || d.ExpectedPrefill < 0 || len(d.Chain)*t.cfg.BlockSize > d.PromptTokens {
		return fault.New(fault.Internal, "slots: reserve: %d prompt tokens do not go with a chain of %d blocks, an overlap of %d and an expected output of %d",
			d.PromptTokens, len(d.Chain), d.OverlapBlocks, d.ExpectedOutput)
	}
	at := t.add(now, Reservation{
		Worker: w, Chain: d.Chain, PromptTokens: d.PromptTokens, PrefillTokens: t.prefill(d),
		ExpectedOutput: d.ExpectedOutput, ExpectedPrefill: d.ExpectedPrefill,
	})
	t.requests[at].key = key
	t.byKey[key] = at
	if t.cfg.Journal != nil {
		t.requests[at].number = t.cfg.Journal.Reserved(t.ref(at))
	}
	return nil
}

// AdoptReservation counts a reservation which another router made, until it is freed or its worker is
// dropped. The TTL does not apply: the router which made it expires it and reports that. The table keeps a
// copy of the chain, cut to the prompt.
func (t *Table) Adopt(now kv.Mono, v Reservation) Ref {
	t.Expire(now)
	v.PromptTokens, v.ExpectedOutput = max(0, v.PromptTokens), max(0, v.ExpectedOutput)
	v.PrefillTokens = min(max(0, v.PrefillTokens), v.PromptTokens)
	v.Chain = v.Chain[:min(len(v.Chain), v.PromptTokens/t.cfg.BlockSize)]
	at := t.add(now, v)
	r := &t.requests[at]
	r.adopted = true
	r.worker.others.Requests++
	r.worker.others.PrefillTokens += r.prefill
	t.grow(at, v.OutputTokens)
	return t.ref(at)
}

// addReservation counts a reservation without output, and returns its index.
func (t *Table) add(now kv.Mono, v Reservation) int32 {
	wk := t.workers[v.Worker]
	if wk == nil {
		wk = &worker{id: v.Worker, blocks: trie{after: map[edge]int32{}}, first: none, last: none}
		t.workers[v.Worker] = wk
	}
	at := t.take()
	r := &t.requests[at]
	r.worker, r.at = wk, now
	r.prefill, r.duration = v.PrefillTokens, max(0, v.ExpectedPrefill)
	r.chain = append(r.chain[:0], v.Chain...)
	r.unnamed = v.PromptTokens/t.cfg.BlockSize - len(v.Chain)
	r.prompt, r.expect, r.weight = v.PromptTokens, v.ExpectedOutput, whole
	t.link(at)
	if r.prefill > 0 {
		t.enqueue(at)
	}
	t.use(wk, at)
	wk.alone += r.weight * int64(r.unnamed)
	wk.load.Requests++
	wk.load.PrefillTokens += r.prefill
	wk.load.OutputTokens += r.expect
	return at
}

// countChain counts the request at an index among the users of its blocks.
func (t *Table) use(wk *worker, at int32) {
	r := &t.requests[at]
	r.tip = none
	for chain := r.chain; len(chain) > 0; {
		var n int
		r.tip, n = wk.blocks.enter(r.tip, chain)
		s := &wk.blocks.stretches[r.tip]
		switch s.n {
		case 0:
			r.sole += n
			wk.alone += r.weight * int64(n)
		case 1:
			owner := &t.requests[s.who]
			owner.sole -= n
			wk.alone -= owner.weight * int64(n)
			wk.shared += n
		}
		s.n, s.who = s.n+1, s.who^at
		chain = chain[n:]
	}
}

// uncountChain removes the request at an index from the users of its blocks.
func (t *Table) leave(wk *worker, at int32) {
	r := &t.requests[at]
	for place := r.tip; place != none; {
		s := &wk.blocks.stretches[place]
		n, before := len(s.seqs), s.before
		s.n, s.who = s.n-1, s.who^at
		switch s.n {
		case 0:
			r.sole -= n
			wk.alone -= r.weight * int64(n)
			wk.blocks.remove(place)
		case 1:
			owner := &t.requests[s.who]
			owner.sole += n
			wk.alone += owner.weight * int64(n)
			wk.shared -= n
		}
		place = before
	}
}

// MarkPrefilled records that the worker has computed the whole prompt. It reports whether the key is
// reserved; a second call changes nothing.
func (t *Table) Prefilled(key Key) bool {
	at, ok := t.byKey[key]
	if !ok {
		return false
	}
	if r := &t.requests[at]; r.prefill > 0 && r.number > 0 {
		t.cfg.Journal.Prefilled(r.number)
	}
	t.computed(at)
	return true
}

// finishPrefill removes the rest of a prefill from the load.
func (t *Table) computed(at int32) {
	r := &t.requests[at]
	if r.prefill == 0 {
		return
	}
	t.dequeue(at)
	r.worker.load.PrefillTokens -= r.prefill
	if r.adopted {
		r.worker.others.PrefillTokens -= r.prefill
	}
	r.prefill = 0
}

// AddOutput records that n more tokens were generated. Each block which they fill counts from then on. It
// reports whether the key is reserved; n below 1 changes nothing.
func (t *Table) Grow(key Key, n int) bool {
	at, ok := t.byKey[key]
	if !ok || n < 1 {
		return ok
	}
	t.grow(at, n)
	if r := &t.requests[at]; r.number > 0 {
		t.cfg.Journal.Grown(r.number, r.output)
	}
	return true
}

func (t *Table) grow(at int32, n int) {
	if n < 1 {
		return
	}
	r := &t.requests[at]
	wk := r.worker
	wk.load.OutputTokens -= r.remaining()
	wk.alone -= r.weight * int64(r.sole+r.unnamed)
	r.output += n
	r.unnamed = (r.prompt+r.output)/t.cfg.BlockSize - len(r.chain)
	if r.expect > 0 {
		if r.weight == whole {
			wk.fading++
		}
		r.weight = int64(r.remaining()) * whole / int64(r.expect)
		if r.weight == whole { // so many tokens are expected that one does not change the weight
			wk.fading--
		}
	}
	wk.alone += r.weight * int64(r.sole+r.unnamed)
	wk.load.OutputTokens += r.remaining()
}

// RenewReservation restarts the TTL of a reservation whose request still runs. It reports whether the key is
// reserved.
func (t *Table) Renew(now kv.Mono, key Key) bool {
	t.Advance(now)
	at, ok := t.byKey[key]
	if ok {
		t.renew(at)
	}
	return ok
}

// renewAt makes the request at an index the newest.
func (t *Table) renew(at int32) {
	t.unlink(at)
	t.requests[at].at = t.now
	t.link(at)
}

// Free ends a reservation and reports whether there was one.
func (t *Table) Free(key Key) bool {
	at, ok := t.byKey[key]
	if ok {
		t.free(at)
	}
	return ok
}

// DropWorker ends all reservations on w, which was removed, and returns their number.
func (t *Table) DropWorker(w kv.Worker) int {
	n := 0
	for at := t.oldest; at != none; {
		r := &t.requests[at]
		next := r.newer
		if r.worker.id == w {
			t.free(at)
			n++
		}
		at = next
	}
	delete(t.workers, w)
	return n
}

// ExpireOld frees the reservations made here which were not renewed for the TTL, and returns their number. It
// also advances the table's time.
func (t *Table) Expire(now kv.Mono) int {
	t.Advance(now)
	n := 0
	for t.oldest != none && now.Sub(t.requests[t.oldest].at) >= t.cfg.TTL {
		if t.requests[t.oldest].adopted {
			t.renew(t.oldest)
			continue
		}
		t.expired++
		t.free(t.oldest)
		n++
	}
	return n
}

// remainingOutput returns the number of tokens which are still expected by the hint.
func (r *request) remaining() int { return max(0, r.expect-r.output) }

// uncachedTokens returns the prompt tokens of d which are not cached.
func (t *Table) prefill(d Demand) int {
	return max(0, d.PromptTokens-d.OverlapBlocks*t.cfg.BlockSize)
}

func (t *Table) free(at int32) {
	r := &t.requests[at]
	wk := r.worker
	if r.number > 0 {
		t.cfg.Journal.Freed(r.number)
	}
	if r.weight < whole {
		wk.fading--
	}
	t.computed(at)
	wk.alone -= r.weight * int64(r.unnamed)
	t.leave(wk, at)
	wk.load.Requests--
	wk.load.OutputTokens -= r.remaining()
	if r.adopted {
		wk.others.Requests--
	} else {
		delete(t.byKey, r.key)
	}
	t.unlink(at)
	t.give(at)
}

func (t *Table) ref(at int32) Ref { return Ref{t, at, t.requests[at].life} }
