package main

import (
	"testing"
	"time"

	"penstock/core/kv"
)

// small is a setup with few requests, over workers that need one word, several, or rows of
// their own.
func small(t *testing.T, workers, prompt int) *clusterSetup {
	t.Helper()
	w, err := newRequestSet("small", makePrompts(60))
	if err != nil {
		t.Fatal(err)
	}
	s := &clusterSetup{workers: workers, requestSet: w}
	if prompt > 0 {
		s.commonBlocks = prompt * blocksPerID
		if s.requestSet, err = w.withCommonPrompt(prompt); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestBaselineAgreesWithOracle says that what core/prefix is held against is right too, in
// all that is asked of it: also after evictions anywhere.
func TestBaselineAgreesWithOracle(t *testing.T) {
	for _, c := range []struct{ workers, prompt int }{{8, 0}, {64, 1}, {200, 0}, {7000, 1}} {
		s := small(t, c.workers, c.prompt)
		table, truth := newBitmapTable(s.workers, s.unique), s.newTruth()
		subject := bitmapSubject{table}
		s.fillIndex(subject.storeRange)
		for i := range s.requests {
			chain := s.requests[i].chain
			if got := table.gallopDepth(chain); got != len(chain) {
				t.Errorf("%v: request %d: gallop finds %d blocks, want %d", s, i, got, len(chain))
			}
		}
		for _, every := range []int{1 << 60, 20, 3} {
			s.evictShare(every, func(w int, seqs []kv.SeqHash) {
				table.removeSeqs(w, seqs)
				for _, seq := range seqs {
					truth.removeHolder(w, seq)
				}
			})
			var a answerAgreement
			a.compareAnswers(subject.newReader().(overlapReader), truth, s.requestSet, 60)
			if a.wrong > 0 || a.found != a.matched || a.found == 0 {
				t.Errorf("%v: one in %d evicted: %+v", s, every, a)
			}
		}
	}
}

// TestIndexAgreesWithOracle does the same with core/prefix, and then lets a storm pass over
// it.
func TestIndexAgreesWithOracle(t *testing.T) {
	s := small(t, 64, 1)
	p, err := newPrefixSubject()
	if err != nil {
		t.Fatal(err)
	}
	table, truth := newBitmapTable(s.workers, s.unique), s.newTruth()
	s.fillIndex(p.storeRange)
	s.fillIndex(bitmapSubject{table}.storeRange)
	steps, err := newStormScript(s.requestSet, s.workers)
	if err != nil {
		t.Fatal(err)
	}
	steps = steps[:stormLive+50]
	steps.resolveBases(table.workerHolds)
	storm := steps.newStormWriter(p)
	for range 100 {
		storm.storeNext()
	}
	if held := p.index.Stats().Entries; held <= truth.entries {
		t.Errorf("%d entries in a storm, %d before", held, truth.entries)
	}
	storm.removeAll()
	var a answerAgreement
	a.compareAnswers(p.newReader().(overlapReader), truth, s.requestSet, 60)
	if a.wrong > 0 || a.found != a.matched || p.index.Stats().Entries != truth.entries {
		t.Errorf("after a storm: %+v, %d entries, want %d", a, p.index.Stats().Entries, truth.entries)
	}
}

func TestReplays(t *testing.T) {
	w, err := newRequestSet("small", makePrompts(60))
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range evictions {
		if err := replayWith(w, 5, 2000, how); err != nil {
			t.Errorf("%s: %v", how.name, err)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h latencyHistogram
	for n := range 100_000 {
		h.addDuration(time.Duration(n + 1))
	}
	for _, share := range []float64{0.001, 0.5, 0.99, 1} {
		got, want := float64(h.durationAt(share)), share*100_000
		if got < want || got > want*1.02+1 {
			t.Errorf("%v of 1 to 100,000 are up to %v, want %v", share, got, want)
		}
	}
	for _, n := range []uint64{0, 127, 128, 129, 1<<40 + 12345} {
		var one latencyHistogram
		one.addDuration(time.Duration(n))
		if got := uint64(one.durationAt(1)); got < n || got > n+n>>stepBits {
			t.Errorf("%d is counted as up to %d", n, got)
		}
	}
}
