package forecast

import (
	"math/rand/v2"
	"testing"
)

// twin rates by all reports it ever received.
type twin struct{ all []entry }

type entry struct {
	pair
	guessed bool // something was predicted which was not known
}

func (w *twin) judge() Verdict {
	last := func(counts func(entry) bool) (out []entry) {
		for i := len(w.all) - 1; i >= 0 && len(out) < Window; i-- {
			if counts(w.all[i]) {
				out = append(out, w.all[i])
			}
		}
		return out
	}
	hopes := last(func(p entry) bool { return p.predicted >= MinBlocks })
	finds := last(func(p entry) bool { return p.reported >= MinBlocks && !(p.guessed && p.predicted == 0) })
	predicted, met, ever := 0, 0, 0
	for _, p := range hopes {
		predicted, met = predicted+p.predicted, met+min(p.predicted, p.reported)
	}
	for _, p := range finds {
		ever += p.predicted
	}
	switch {
	case len(hopes) == Window && float64(met) < float64(predicted)/2:
		return Over
	case len(finds) == Window && ever == 0:
		return Blind
	case len(hopes) == Window || len(finds) == Window:
		return Fair
	}
	return Open
}

// TestTwin compares the record with its twin over changing conditions.
func TestTwin(t *testing.T) {
	seen := map[Verdict]int{}
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var r Record
		var w twin
		hope, truth := 1, 1
		for i := range 400 {
			if i%60 == 0 {
				hope, truth = rng.IntN(12), rng.IntN(12)
			}
			p := entry{pair{rng.IntN(hope + 1), rng.IntN(truth + 1)}, rng.IntN(4) == 0}
			beyond := 0
			if p.guessed {
				beyond = 1 + rng.IntN(9)
			}
			if rng.IntN(3) == 0 {
				p.reported = p.predicted
			}
			was := r.Verdict()
			changed := r.Add(p.predicted, p.predicted+beyond, p.reported)
			w.all = append(w.all, p)
			got, want := r.Verdict(), w.judge()
			if got != want || changed != (got != was) {
				t.Fatalf("seed %d, after %d: %v, want %v; changed %v from %v", seed, i+1, got, want, changed, was)
			}
			seen[got]++
		}
	}
	for v := Open; v <= Blind; v++ {
		if seen[v] == 0 {
			t.Errorf("never %v", v)
		}
	}
}

// TestRecord checks the ratings at their boundaries.
func TestRecord(t *testing.T) {
	for _, tt := range []struct {
		name             string
		pairs            []pair // each repeated Window times
		want             Verdict
		predicted, found int
	}{
		{"nothing", nil, Open, 0, 0},
		{"nothing that says anything", []pair{{3, 3}}, Open, 0, 0},
		{"as predicted", []pair{{8, 8}}, Fair, 256, 256},
		{"half", []pair{{8, 4}}, Fair, 256, 128},
		{"under half", []pair{{9, 4}}, Over, 288, 128},
		{"one prompt's surplus is no other's", []pair{{9, 4}, {0, 50}}, Over, 288, 128},
		{"less was predicted", []pair{{4, 50}}, Fair, 128, 128},
		{"nothing was predicted", []pair{{0, 4}}, Blind, 0, 128},
		{"that was long ago", []pair{{0, 4}, {4, 4}}, Fair, 128, 128},
	} {
		var r Record
		for _, p := range tt.pairs {
			for range Window {
				r.Add(p.predicted, p.predicted, p.reported)
			}
		}
		predicted, found := r.Evidence()
		if got := r.Verdict(); got != tt.want || predicted != tt.predicted || found != tt.found {
			t.Errorf("%s: %v of %d predicted and %d found, want %v of %d and %d", tt.name, got, predicted, found, tt.want, tt.predicted, tt.found)
		}
	}
	var r Record
	for range Window - 1 {
		r.Add(0, 9, 9) // its twin request is being computed
		if r.Add(0, 0, 9) {
			t.Error("a verdict of few reports")
		}
	}
	if !r.Add(0, 0, 9) || r.Verdict().String() != "blind" {
		t.Errorf("%v after a full window", r.Verdict())
	}
}
