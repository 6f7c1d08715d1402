package disagg

import (
	"math"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/rates"
)

// TestSplitRates: what was measured decides, and not what was believed: of transfers, of prefills here, and of prefills
// elsewhere.
func TestSplitRates(t *testing.T) {
	in := SplitInputs{Tokens: 8000, BlockSize: 16, Decoding: 10, PrefillWorkers: 1}
	split := DefaultSplit()
	decide := func(learn func(*SplitRates)) Decision {
		r, err := NewSplitRates(rates.Config{}, testHandoff(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		learn(r)
		in := in
		return r.Decide(0, &split, &in, &Candidates{Workers: []PrefillCandidate{{Worker: workerA}}})
	}
	before := decide(func(*SplitRates) {})
	if !before.Remote || before.Reason != CheaperRemote {
		t.Errorf("before anything is known: %+v", before)
	}
	if got := before.RemoteCost.Transfer; math.Abs(got-(1+7984*0.001)) > 1e-9 {
		t.Errorf("a transfer at 1 GB/s takes %v ms", got)
	}
	slow := decide(func(r *SplitRates) {
		for range 50 {
			r.RecordTransfer(OtherHost, 4000, 2*time.Second)
		}
	})
	if got := slow.RemoteCost.Transfer; slow.Remote || got < 3000 || got > 4500 {
		t.Errorf("behind a slow network: a transfer takes %v ms, %+v", got, slow)
	}
	record := func(record func(*SplitRates, kv.Mono)) func(*SplitRates) {
		return func(r *SplitRates) {
			for i := range 50 {
				record(r, kv.Mono(time.Duration(i+1)*time.Minute))
			}
		}
	}
	busy := decide(record(func(r *SplitRates, now kv.Mono) {
		r.RecordLocal(now, 4000, 100*time.Millisecond)
		r.RecordRemote(now, 4000, 2*time.Second)
	}))
	if busy.Remote || busy.RemoteCost.Prefill < 2*busy.LocalCost.Prefill {
		t.Errorf("with slow prefill workers: %+v", busy)
	}
	// One transfer which took an hour, or no time, does not make the next ones endless, or free.
	for _, took := range []time.Duration{-time.Second, 0, 1 << 62} {
		d := decide(func(r *SplitRates) { r.RecordTransfer(OtherHost, 0, took) })
		if got := d.RemoteCost.Transfer; !(got > 0) || math.IsInf(got, 0) {
			t.Errorf("after a transfer of %v: %v ms", took, got)
		}
	}
}
