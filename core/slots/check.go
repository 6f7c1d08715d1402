package slots

import (
	"fmt"

	"penstock/core/kv"
)

// Check reports the first violated invariant: every worker's load is the sum over
// its reservations, every count of a block is the number of reservations that
// name it, each request knows which blocks are its alone, the list by age holds each
// reservation once, in order of time, and each worker's queue has the prefills that
// are not done.
func (t *Table) Check() error {
	sums, n, err := t.sum()
	if err != nil {
		return err
	}
	if n != len(t.byKey)+t.Adopted() || n+len(t.vacant) != len(t.requests) {
		return fmt.Errorf("slots: check: %d listed, %d by key, %d vacant of %d", n, len(t.byKey), len(t.vacant), len(t.requests))
	}
	for id, wk := range t.workers {
		sum := sums[id]
		if sum == nil {
			sum = &worker{}
		}
		if err := t.checkWorker(wk, sum); err != nil {
			return err
		}
	}
	return nil
}

// sum adds up what the reservations say, and returns their number too.
func (t *Table) sum() (map[kv.Worker]*worker, int, error) {
	sums := map[kv.Worker]*worker{}
	n, older := 0, int32(none)
	for at := t.oldest; at != none; at = t.requests[at].newer {
		r := &t.requests[at]
		switch {
		case n == len(t.requests):
			return nil, n, fmt.Errorf("slots: check: the list by age is longer than the %d places", n)
		case r.older != older:
			return nil, n, fmt.Errorf("slots: check: request %v is linked to %d, not %d", r.key, r.older, older)
		case older != none && t.requests[older].at > r.at:
			return nil, n, fmt.Errorf("slots: check: request %v is older than the one before it", r.key)
		case t.workers[r.worker.id] != r.worker:
			return nil, n, fmt.Errorf("slots: check: request %v is on worker %v, which was dropped", r.key, r.worker.id)
		}
		if place, ok := t.byKey[r.key]; !r.adopted && (!ok || place != at) {
			return nil, n, fmt.Errorf("slots: check: request %v is not found by its key", r.key)
		}
		sum := sums[r.worker.id]
		if sum == nil {
			sum = &worker{refs: map[kv.SeqHash]ref{}}
			sums[r.worker.id] = sum
		}
		for _, seq := range r.chain {
			have := sum.refs[seq]
			sum.refs[seq] = ref{have.n + 1, have.who ^ at}
		}
		sum.load.Requests++
		sum.load.PrefillTokens += r.prefill
		sum.load.OutputTokens += r.remaining()
		sum.alone += r.weight * int64(r.unnamed)
		if r.weight < whole {
			sum.fading++
		}
		if r.adopted {
			sum.others.Requests++
			sum.others.PrefillTokens += r.prefill
		}
		n, older = n+1, at
	}
	if older != t.newest {
		return nil, n, fmt.Errorf("slots: check: the list by age ends with %d, not %d", older, t.newest)
	}
	return sums, n, nil
}

// checkWorker holds a worker against the sum of its requests.
func (t *Table) checkWorker(wk, sum *worker) error {
	sole := map[int32]int{}
	for seq, have := range sum.refs {
		if wk.refs[seq] != have {
			return fmt.Errorf("slots: check: block %x of worker %v counts %+v, its requests %+v", uint64(seq), wk.id, wk.refs[seq], have)
		}
		if have.n > 1 {
			sum.shared++
			continue
		}
		sole[have.who]++
		sum.alone += t.requests[have.who].weight
	}
	queued := 0
	for at, earlier := wk.first, int32(none); at != none; at = t.requests[at].later {
		r := &t.requests[at]
		if r.worker != wk || r.prefill == 0 || r.earlier != earlier || queued == len(t.requests) {
			return fmt.Errorf("slots: check: request %v does not belong where it is in the queue of worker %v", r.key, wk.id)
		}
		queued, earlier = queued+1, at
	}
	for at := t.oldest; at != none; at = t.requests[at].newer {
		r := &t.requests[at]
		if r.worker != wk {
			continue
		}
		if r.prefill > 0 {
			queued--
		}
		if r.sole != sole[at] {
			return fmt.Errorf("slots: check: request %v has %d blocks alone, and knows of %d", r.key, sole[at], r.sole)
		}
	}
	switch {
	case queued != 0:
		return fmt.Errorf("slots: check: %d requests are not in the queue of worker %v", -queued, wk.id)
	case len(wk.refs) != len(sum.refs):
		return fmt.Errorf("slots: check: worker %v counts %d blocks, its requests %d", wk.id, len(wk.refs), len(sum.refs))
	case wk.load != sum.load || wk.shared != sum.shared || wk.alone != sum.alone || wk.fading != sum.fading || wk.others != sum.others:
		return fmt.Errorf("slots: check: worker %v has %+v, %d shared, %d alone, %d fading, %+v; its requests %+v, %d, %d, %d, %+v",
			wk.id, wk.load, wk.shared, wk.alone, wk.fading, wk.others, sum.load, sum.shared, sum.alone, sum.fading, sum.others)
	}
	return nil
}
