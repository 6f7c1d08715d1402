package slots

import (
	"fmt"

	"penstock/core/kv"
)

// Check reports the first violated invariant: every worker's load is the sum over
// its reservations, every count of a block is the number of reservations that
// name it, and the list by age holds each reservation once, in order of time.
func (t *Table) Check() error {
	sums := map[kv.Worker]*worker{}
	n, older := 0, int32(none)
	for at := t.oldest; at != none; at = t.requests[at].newer {
		r := &t.requests[at]
		switch {
		case n == len(t.byKey):
			return fmt.Errorf("slots: check: the list by age is longer than the %d reservations", n)
		case r.older != older:
			return fmt.Errorf("slots: check: request %v is linked to %d, not %d", r.key, r.older, older)
		case older != none && t.requests[older].at > r.at:
			return fmt.Errorf("slots: check: request %v is older than the one before it", r.key)
		case t.workers[r.worker.id] != r.worker:
			return fmt.Errorf("slots: check: request %v is on worker %v, which was dropped", r.key, r.worker.id)
		}
		if place, ok := t.byKey[r.key]; !ok || place != at {
			return fmt.Errorf("slots: check: request %v is not found by its key", r.key)
		}
		sum := sums[r.worker.id]
		if sum == nil {
			sum = &worker{refs: map[kv.SeqHash]int32{}}
			sums[r.worker.id] = sum
		}
		for _, seq := range r.chain {
			sum.refs[seq]++
		}
		sum.load.Requests++
		sum.load.PrefillTokens += r.prefill
		sum.load.Blocks += r.unnamed
		sum.load.OutputTokens += r.remaining()
		n, older = n+1, at
	}
	if n != len(t.byKey) || older != t.newest || n+len(t.vacant) != len(t.requests) {
		return fmt.Errorf("slots: check: %d listed, %d by key, %d vacant of %d", n, len(t.byKey), len(t.vacant), len(t.requests))
	}
	for id, wk := range t.workers {
		sum := sums[id]
		if sum == nil {
			sum = &worker{}
		}
		sum.load.Blocks += len(sum.refs)
		if wk.load != sum.load {
			return fmt.Errorf("slots: check: worker %v has load %+v, its requests %+v", id, wk.load, sum.load)
		}
		if len(wk.refs) != len(sum.refs) {
			return fmt.Errorf("slots: check: worker %v counts %d blocks, its requests %d", id, len(wk.refs), len(sum.refs))
		}
		for seq, refs := range wk.refs {
			if sum.refs[seq] != refs {
				return fmt.Errorf("slots: check: block %x of worker %v counts %d, its requests %d", uint64(seq), id, refs, sum.refs[seq])
			}
		}
	}
	return nil
}
