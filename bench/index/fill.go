package main

import (
	"fmt"
	"runtime"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// clusterSetup is one measured cluster: request i is stored on worker i mod workers.
type setup struct {
	workers  int
	everyone int // leading blocks of every request, held by every worker
	*workload
}

// String names the setup as in rows.
func (s *setup) String() string {
	if s.everyone > 0 {
		return fmt.Sprintf("workers=%d+prompt", s.workers)
	}
	return fmt.Sprintf("workers=%d", s.workers)
}

// fillIndex stores the workload, in events of at most eventBlocks blocks.
func (s *setup) fill(store func(w int, r *request, from, to int)) {
	whole := func(w int, r *request, to int) {
		for from := 0; from < to; from += eventBlocks {
			store(w, r, from, min(from+eventBlocks, to))
		}
	}
	if s.everyone > 0 {
		for w := range s.workers {
			whole(w, &s.requests[0], s.everyone)
		}
	}
	for i := range s.requests {
		whole(i%s.workers, &s.requests[i], len(s.requests[i].chain))
	}
}

// evictShare removes one in every blocks of what fillIndex stored, anywhere in its prompt, as an engine which
// evicts by age only. The choice depends on worker and prefix.
func (s *setup) evict(every int, remove func(w int, seqs []kv.SeqHash)) {
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
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// newTruth fills an oracle.
func (s *setup) truth() *oracle {
	o := newOracle(s.unique)
	s.fill(func(w int, r *request, from, to int) {
		for _, seq := range r.chain[from:to] {
			o.store(w, seq)
		}
	})
	return o
}

// answerAgreement counts how answers compare with the truth.
type agreement struct {
	asked, wrong   int // requests
	found, matched int // blocks over all workers, by the subject and by the oracle
}

// matchedShare returns the matched share.
func (a agreement) share() float64 {
	if a.matched == 0 {
		return 1
	}
	return float64(a.found) / float64(a.matched)
}

// compareAnswers compares the answers of p for at most most requests with the truth, for every worker.
func (a *agreement) compare(p picker, o *oracle, w *workload, most int) {
	var got []kv.Overlap
	var want []held
	step := max(1, (len(w.requests)+most-1)/most)
	for i := 0; i < len(w.requests); i += step {
		chain := w.requests[i].chain
		got, want = p.overlaps(got[:0], chain), o.match(want[:0], chain)
		a.one(got, want)
	}
}

// compareOne compares one answer.
func (a *agreement) one(got []kv.Overlap, want []held) {
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
