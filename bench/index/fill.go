package main

import (
	"fmt"
	"runtime"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// clusterSetup is one measured cluster: request i is stored on worker i mod workers.
type clusterSetup struct {
	workers      int
	commonBlocks int // leading blocks of every request, held by every worker
	*requestSet
}

// String names the setup as in rows.
func (s *clusterSetup) String() string {
	if s.commonBlocks > 0 {
		return fmt.Sprintf("workers=%d+prompt", s.workers)
	}
	return fmt.Sprintf("workers=%d", s.workers)
}

// fillIndex stores the workload, in events of at most eventBlocks blocks.
func (s *clusterSetup) fillIndex(store func(w int, r *request, from, to int)) {
	whole := func(w int, r *request, to int) {
		for from := 0; from < to; from += eventBlocks {
			store(w, r, from, min(from+eventBlocks, to))
		}
	}
	if s.commonBlocks > 0 {
		for w := range s.workers {
			whole(w, &s.requests[0], s.commonBlocks)
		}
	}
	for i := range s.requests {
		whole(i%s.workers, &s.requests[i], len(s.requests[i].chain))
	}
}

// evictShare removes one in every blocks of what fillIndex stored, anywhere in its prompt, as an engine which
// evicts by age only. The choice depends on worker and prefix.
func (s *clusterSetup) evictShare(every int, remove func(w int, seqs []kv.SeqHash)) {
	for i := range s.requests {
		w := i % s.workers
		var seqs []kv.SeqHash
		for _, seq := range s.requests[i].chain {
			if splitmix.Mix(uint64(seq)+uint64(w))%uint64(every) == 0 {
				seqs = append(seqs, seq)
			}
		}
		if len(seqs) > 0 {
			remove(w, seqs)
		}
	}
}

// heapInUse returns the bytes of the heap in use after garbage collection.
func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// newTruth fills an oracle.
func (s *clusterSetup) newTruth() *holderOracle {
	o := newHolderOracle(s.unique)
	s.fillIndex(func(w int, r *request, from, to int) {
		for _, seq := range r.chain[from:to] {
			o.addHolder(w, seq)
		}
	})
	return o
}

// answerAgreement counts how answers compare with the truth.
type answerAgreement struct {
	asked, wrong   int // requests
	found, matched int // blocks over all workers, by the subject and by the oracle
}

// matchedShare returns the matched share.
func (a answerAgreement) matchedShare() float64 {
	if a.matched == 0 {
		return 1
	}
	return float64(a.found) / float64(a.matched)
}

// compareAnswers compares the answers of p for at most most requests with the truth, for every worker.
func (a *answerAgreement) compareAnswers(p overlapReader, o *holderOracle, w *requestSet, most int) {
	var got []kv.Overlap
	var want []holderDepth
	step := max(1, (len(w.requests)+most-1)/most)
	for i := 0; i < len(w.requests); i += step {
		chain := w.requests[i].chain
		got, want = p.appendOverlaps(got[:0], chain), o.matchHolders(want[:0], chain)
		a.compareOne(got, want)
	}
}

// compareOne compares one answer.
func (a *answerAgreement) compareOne(got []kv.Overlap, want []holderDepth) {
	a.asked++
	same := len(got) == len(want)
	for _, g := range got {
		a.found += g.Depth()
	}
	for i, h := range want {
		a.matched += h.depth
		same = same && got[i].Worker == workerOf(int(h.worker)) && got[i].Depth() == h.depth
	}
	if !same {
		a.wrong++
	}
}
