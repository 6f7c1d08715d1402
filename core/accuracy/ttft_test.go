package accuracy

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestTTFTRecord compares the record with one which keeps everything, and checks when it changes its mind.
func TestTTFTRecord(t *testing.T) {
	const ms = time.Millisecond
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var r TTFTRecord
		type pair struct{ predicted, observed time.Duration }
		var all []pair
		off, spread := false, 1
		for i := range 500 {
			if i%70 == 0 {
				spread = 1 + rng.IntN(400)
			}
			p := pair{time.Duration(100+rng.IntN(spread)) * ms, time.Duration(100+rng.IntN(spread)) * ms}
			all = append(all, p)
			changed := r.AddTime(p.predicted, p.observed)
			last := all[max(0, len(all)-Window):]
			var errors, sum time.Duration
			higher := 0
			for _, p := range last {
				errors += (p.observed - p.predicted).Abs()
				sum += p.observed
				if p.observed > p.predicted {
					higher++
				}
			}
			n := time.Duration(len(last))
			was := off
			if len(last) == Window {
				switch {
				case errors/n > sum/n/2 && errors > n*50*ms:
					off = true
				case float64(errors) < float64(sum)/4 || errors < n*25*ms:
					off = false
				}
			}
			if r.IsOff() != off || changed != (off != was) {
				t.Fatalf("seed %d, after %d: off %v, want %v; changed %v", seed, i+1, r.IsOff(), off, changed)
			}
			if got, want := r.Evidence(), (TTFTEvidence{errors / n, sum / n, higher, len(last)}); got != want {
				t.Fatalf("seed %d, after %d: %+v, want %+v", seed, i+1, got, want)
			}
		}
	}
	if got := new(TTFTRecord).Evidence(); got != (TTFTEvidence{}) {
		t.Errorf("%+v of nothing", got)
	}
}

// TestTTFTRecordChanges: predictions which are far off are noticed once, and once when they are good again.
func TestTTFTRecordChanges(t *testing.T) {
	var r TTFTRecord
	changes := 0
	for i := range 6 * Window {
		observed := time.Second
		if i < 3*Window {
			observed = 3 * time.Second
		}
		if r.AddTime(time.Second, observed) {
			changes++
		}
		if i == 2*Window && !r.IsOff() {
			t.Error("predictions of a third of the time are not off")
		}
	}
	if changes != 2 || r.IsOff() {
		t.Errorf("%d changes, off %v at the end", changes, r.IsOff())
	}
}
