package slots

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Check reports the first violated invariant:
//   - every worker's load is the sum over its reservations;
//   - every count of a block is the number of reservations which name it;
//   - each request knows how many blocks it alone uses;
//   - the list by age holds each reservation once, in order of time;
//   - each worker's queue holds its unfinished prefills.
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

// sumReservations returns the sums over the reservations by worker, and the number of reservations.
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
			sum = &worker{}
			sums[r.worker.id] = sum
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

// checkWorker compares a worker with the sum of its requests.
func (t *Table) checkWorker(wk, sum *worker) error {
	sole, err := t.checkBlocks(wk, sum)
	if err != nil {
		return err
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
	case wk.load != sum.load || wk.shared != sum.shared || wk.alone != sum.alone || wk.fading != sum.fading || wk.others != sum.others:
		return fmt.Errorf("slots: check: worker %v has %+v, %d shared, %d alone, %d fading, %+v; its requests %+v, %d, %d, %d, %+v",
			wk.id, wk.load, wk.shared, wk.alone, wk.fading, wk.others, sum.load, sum.shared, sum.alone, sum.fading, sum.others)
	}
	return nil
}

// checkBlocks compares the trie of a worker with the chains of its requests. It adds to sum the number of
// shared blocks and the weight of the others, and returns how many blocks each request alone uses.
func (t *Table) checkBlocks(wk, sum *worker) (sole map[int32]int, err error) {
	users := make([]stretch, len(wk.blocks.stretches))
	for at := t.oldest; at != none; at = t.requests[at].newer {
		r := &t.requests[at]
		if r.worker != wk {
			continue
		}
		left := r.chain
		for place := r.tip; place != none; place = wk.blocks.stretches[place].before {
			s := &wk.blocks.stretches[place]
			rest, found := cutSuffix(left, s.seqs)
			if !found || s.head != s.seqs[0] || wk.blocks.after[edge{s.before, s.head}] != place {
				return nil, fmt.Errorf("slots: check: the blocks of request %v of worker %v are not those of its chain", r.key, wk.id)
			}
			left = rest
			users[place].n++
			users[place].who ^= at
		}
		if len(left) > 0 {
			return nil, fmt.Errorf("slots: check: %d blocks of request %v of worker %v are not counted", len(left), r.key, wk.id)
		}
	}
	sole = map[int32]int{}
	used := 0
	for place, want := range users {
		s := &wk.blocks.stretches[place]
		if s.n != want.n || s.who != want.who {
			return nil, fmt.Errorf("slots: check: %d blocks of worker %v count %d and %d, their requests %d and %d", len(s.seqs), wk.id, s.n, s.who, want.n, want.who)
		}
		switch {
		case s.n > 1:
			sum.shared += len(s.seqs)
		case s.n == 1:
			sole[s.who] += len(s.seqs)
			sum.alone += t.requests[s.who].weight * int64(len(s.seqs))
		default:
			continue
		}
		used++
	}
	if used != len(wk.blocks.after) || used+len(wk.blocks.vacant) != len(users) {
		return nil, fmt.Errorf("slots: check: worker %v finds %d stretches, %d are used and %d vacant of %d", wk.id, len(wk.blocks.after), used, len(wk.blocks.vacant), len(users))
	}
	return sole, nil
}

// cutSuffix returns chain without its suffix end, which must not be empty.
func cutSuffix(chain, end []kv.SeqHash) (rest []kv.SeqHash, found bool) {
	n := len(chain) - len(end)
	if n < 0 || len(end) == 0 || !slices.Equal(chain[n:], end) {
		return nil, false
	}
	return chain[:n], true
}
