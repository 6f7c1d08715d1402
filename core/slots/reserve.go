package slots

import (
	"penstock/core/fault"
	"penstock/core/kv"
)

// Reserve counts a request against w from now on, until Free. It fails with
// Conflict if the key is reserved already, on whatever worker. The table keeps a
// copy of the chain. It also frees what is older than the TTL.
func (t *Table) Reserve(now kv.Mono, key Key, w kv.Worker, d Demand) error {
	t.Expire(now)
	if _, ok := t.byKey[key]; ok {
		return fault.New(fault.Conflict, "attempt %d of request %.100q is active already; give every attempt its own number", key.Attempt, key.ID)
	}
	if d.PromptTokens < 0 || d.OverlapBlocks < 0 || d.ExpectedOutput < 0 || len(d.Chain)*t.cfg.BlockSize > d.PromptTokens {
		return fault.New(fault.Internal, "slots: reserve: %d prompt tokens do not go with a chain of %d blocks, an overlap of %d and an expected output of %d",
			d.PromptTokens, len(d.Chain), d.OverlapBlocks, d.ExpectedOutput)
	}
	wk := t.workers[w]
	if wk == nil {
		wk = &worker{id: w, refs: map[kv.SeqHash]int32{}}
		t.workers[w] = wk
	}
	at := t.take()
	r := &t.requests[at]
	r.key, r.worker, r.at = key, wk, now
	r.prefill = t.prefill(d)
	r.chain = append(r.chain[:0], d.Chain...)
	r.unnamed = d.PromptTokens/t.cfg.BlockSize - len(d.Chain)
	r.prompt, r.output, r.expect = d.PromptTokens, 0, d.ExpectedOutput
	t.link(at)
	t.byKey[key] = at

	for _, seq := range r.chain {
		wk.refs[seq]++
		if wk.refs[seq] == 1 {
			wk.load.Blocks++
		}
	}
	wk.load.Blocks += r.unnamed
	wk.load.Requests++
	wk.load.PrefillTokens += r.prefill
	wk.load.OutputTokens += r.expect
	return nil
}

// Prefilled says that the worker has computed the whole prompt. It reports
// whether the key is reserved; a second call changes nothing.
func (t *Table) Prefilled(key Key) bool {
	at, ok := t.byKey[key]
	if !ok {
		return false
	}
	r := &t.requests[at]
	r.worker.load.PrefillTokens -= r.prefill
	r.prefill = 0
	return true
}

// Grow says that n more tokens were generated. Each block that they fill counts
// from then on. It reports whether the key is reserved; n below 1 changes nothing.
func (t *Table) Grow(key Key, n int) bool {
	at, ok := t.byKey[key]
	if !ok || n < 1 {
		return ok
	}
	r := &t.requests[at]
	r.worker.load.OutputTokens -= r.remaining()
	r.output += n
	r.worker.load.OutputTokens += r.remaining()
	unnamed := (r.prompt+r.output)/t.cfg.BlockSize - len(r.chain)
	r.worker.load.Blocks += unnamed - r.unnamed
	r.unnamed = unnamed
	return true
}

// Free ends a reservation and reports whether there was one.
func (t *Table) Free(key Key) bool {
	at, ok := t.byKey[key]
	if ok {
		t.free(at)
	}
	return ok
}

// DropWorker ends all reservations on w, which is gone, and returns their number.
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

// Expire frees the reservations that are older than the TTL at now and returns
// their number.
func (t *Table) Expire(now kv.Mono) int {
	n := 0
	for t.oldest != none && now.Sub(t.requests[t.oldest].at) >= t.cfg.TTL {
		t.free(t.oldest)
		n++
	}
	t.expired += uint64(n)
	return n
}

// remaining returns the tokens that the hint still promises.
func (r *request) remaining() int { return max(0, r.expect-r.output) }

// prefill returns the prompt tokens of d that are not there already.
func (t *Table) prefill(d Demand) int {
	return max(0, d.PromptTokens-d.OverlapBlocks*t.cfg.BlockSize)
}

func (t *Table) free(at int32) {
	r := &t.requests[at]
	wk := r.worker
	for _, seq := range r.chain {
		if wk.refs[seq] > 1 {
			wk.refs[seq]--
			continue
		}
		delete(wk.refs, seq)
		wk.load.Blocks--
	}
	wk.load.Blocks -= r.unnamed
	wk.load.Requests--
	wk.load.PrefillTokens -= r.prefill
	wk.load.OutputTokens -= r.remaining()
	delete(t.byKey, r.key)
	t.unlink(at)
	t.give(at)
}
