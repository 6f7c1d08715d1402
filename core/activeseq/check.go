package activeseq

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
func (t *ReservationTable) Check() error {
	sums, n, err := t.sumReservations()
	if err != nil {
		return err
	}
	if n != len(t.byKey)+t.AdoptedCount() || n+len(t.vacant) != len(t.records) {
		return fmt.Errorf("activeseq: check: %d listed, %d by key, %d vacant of %d", n, len(t.byKey), len(t.vacant), len(t.records))
	}
	for id, wk := range t.workers {
		sum := sums[id]
		if sum == nil {
			sum = &workerLoad{}
		}
		if err := t.checkWorker(wk, sum); err != nil {
			return err
		}
	}
	return nil
}

// sumReservations returns the sums over the reservations by worker, and the number of reservations.
func (t *ReservationTable) sumReservations() (map[kv.Worker]*workerLoad, int, error) {
	sums := map[kv.Worker]*workerLoad{}
	n, older := 0, int32(noIndex)
	for at := t.oldest; at != noIndex; at = t.records[at].newer {
		r := &t.records[at]
		switch {
		case n == len(t.records):
			return nil, n, fmt.Errorf("activeseq: check: the list by age is longer than the %d places", n)
		case r.older != older:
			return nil, n, fmt.Errorf("activeseq: check: request %v is linked to %d, not %d", r.key, r.older, older)
		case older != noIndex && t.records[older].renewed > r.renewed:
			return nil, n, fmt.Errorf("activeseq: check: request %v is older than the one before it", r.key)
		case t.workers[r.worker.id] != r.worker:
			return nil, n, fmt.Errorf("activeseq: check: request %v is on worker %v, which was dropped", r.key, r.worker.id)
		}
		if place, ok := t.byKey[r.key]; !r.adopted && (!ok || place != at) {
			return nil, n, fmt.Errorf("activeseq: check: request %v is not found by its key", r.key)
		}
		sum := sums[r.worker.id]
		if sum == nil {
			sum = &workerLoad{}
			sums[r.worker.id] = sum
		}
		sum.load.Requests++
		sum.load.PrefillTokens += r.prefillTokens
		sum.load.OutputTokens += r.remainingOutput()
		sum.soleWeight += r.blockWeight * int64(r.unnamedBlocks)
		if r.blockWeight < fullWeight {
			sum.fading++
		}
		if r.adopted {
			sum.othersShare.Requests++
			sum.othersShare.PrefillTokens += r.prefillTokens
		}
		n, older = n+1, at
	}
	if older != t.newest {
		return nil, n, fmt.Errorf("activeseq: check: the list by age ends with %d, not %d", older, t.newest)
	}
	return sums, n, nil
}

// checkWorker compares a worker with the sum of its requests.
func (t *ReservationTable) checkWorker(wk, sum *workerLoad) error {
	sole, err := t.checkBlocks(wk, sum)
	if err != nil {
		return err
	}
	queued, media := 0, 0
	for at, earlier := wk.firstPrefill, int32(noIndex); at != noIndex; at = t.records[at].nextPrefill {
		r := &t.records[at]
		if r.worker != wk || r.prefillTokens == 0 || r.prevPrefill != earlier || queued == len(t.records) {
			return fmt.Errorf("activeseq: check: request %v does not belong where it is in the queue of worker %v", r.key, wk.id)
		}
		queued, earlier, media = queued+1, at, media+r.mediaTokens
	}
	if media != wk.mediaTokens {
		return fmt.Errorf("activeseq: check: %d tokens of media are in the queue of worker %v, %d are counted", media, wk.id, wk.mediaTokens)
	}
	if queued != wk.prefills {
		return fmt.Errorf("activeseq: check: %d prefills are in the queue of worker %v, %d are counted", queued, wk.id, wk.prefills)
	}
	for at := t.oldest; at != noIndex; at = t.records[at].newer {
		r := &t.records[at]
		if r.worker != wk {
			continue
		}
		if r.prefillTokens > 0 {
			queued--
		}
		if r.soleBlocks != sole[at] {
			return fmt.Errorf("activeseq: check: request %v has %d blocks alone, and knows of %d", r.key, sole[at], r.soleBlocks)
		}
	}
	switch {
	case queued != 0:
		return fmt.Errorf("activeseq: check: %d requests are not in the queue of worker %v", -queued, wk.id)
	case wk.load != sum.load || wk.sharedBlocks != sum.sharedBlocks || wk.soleWeight != sum.soleWeight || wk.fading != sum.fading || wk.othersShare != sum.othersShare:
		return fmt.Errorf("activeseq: check: worker %v has %+v, %d shared, %d alone, %d fading, %+v; its requests %+v, %d, %d, %d, %+v",
			wk.id, wk.load, wk.sharedBlocks, wk.soleWeight, wk.fading, wk.othersShare, sum.load, sum.sharedBlocks, sum.soleWeight, sum.fading, sum.othersShare)
	}
	return nil
}

// checkBlocks compares the trie of a worker with the chains of its requests. It adds to sum the number of
// shared blocks and the weight of the others, and returns how many blocks each request alone uses.
func (t *ReservationTable) checkBlocks(wk, sum *workerLoad) (sole map[int32]int, err error) {
	users := make([]blockRun, len(wk.chains.runs))
	for at := t.oldest; at != noIndex; at = t.records[at].newer {
		r := &t.records[at]
		if r.worker != wk {
			continue
		}
		left := r.chain
		for place := r.lastRun; place != noIndex; place = wk.chains.runs[place].parent {
			s := &wk.chains.runs[place]
			rest, found := cutSuffix(left, s.seqs)
			if !found || s.first != s.seqs[0] || wk.chains.findChild(s.parent, s.first) != place {
				return nil, fmt.Errorf("activeseq: check: the blocks of request %v of worker %v differ from its chain", r.key, wk.id)
			}
			left = rest
			users[place].users++
			users[place].userXor ^= at
			if r.prefillTokens > 0 {
				users[place].queued++
			}
		}
		if len(left) > 0 {
			return nil, fmt.Errorf("activeseq: check: %d blocks of request %v of worker %v are not counted", len(left), r.key, wk.id)
		}
	}
	sole = map[int32]int{}
	used, branches := 0, make([]int32, len(users))
	for place, want := range users {
		s := &wk.chains.runs[place]
		if s.users != want.users || s.userXor != want.userXor || s.queued != want.queued {
			return nil, fmt.Errorf("activeseq: check: %d blocks of worker %v count %d, %d queued and %d, their requests %d, %d and %d",
				len(s.seqs), wk.id, s.users, s.queued, s.userXor, want.users, want.queued, want.userXor)
		}
		switch {
		case s.users > 1:
			sum.sharedBlocks += len(s.seqs)
		case s.users == 1:
			sole[s.userXor] += len(s.seqs)
			sum.soleWeight += t.records[s.userXor].blockWeight * int64(len(s.seqs))
		default:
			continue
		}
		used++
		if s.parent != noIndex {
			branches[s.parent]++
		}
	}
	for place := range users {
		s := &wk.chains.runs[place]
		if s.branches != branches[place] || s.likely != noIndex && wk.chains.runs[s.likely].parent != int32(place) {
			return nil, fmt.Errorf("activeseq: check: run %d of worker %v has %d branches, not %d, and the likely one is %d", place, wk.id, branches[place], s.branches, s.likely)
		}
	}
	if found := len(wk.chains.roots) + len(wk.chains.children); used != found || used+len(wk.chains.vacant) != len(users) {
		return nil, fmt.Errorf("activeseq: check: worker %v finds %d stretches, %d are used and %d vacant of %d", wk.id, found, used, len(wk.chains.vacant), len(users))
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
