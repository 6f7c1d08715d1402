package accuracy

import (
	"math/rand/v2"
	"testing"
)

// twin rates by all reports it ever received.
type twin struct{ all []entry }

type entry struct {
	sample
	guessed bool // something was predicted which was not known
}

func (w *twin) judge() Rating {
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
		return Overpredicted
	case len(finds) == Window && ever == 0:
		return Unpredicted
	case len(hopes) == Window || len(finds) == Window:
		return Fair
	}
	return Undecided
}

// TestTwin compares the record with its twin over changing conditions.
func TestTwin(t *testing.T) {
	seen := map[Rating]int{}
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var r Record
		var w twin
		hope, truth := 1, 1
		for i := range 400 {
			if i%60 == 0 {
				hope, truth = rng.IntN(12), rng.IntN(12)
			}
			p := entry{sample{rng.IntN(hope + 1), rng.IntN(truth + 1)}, rng.IntN(4) == 0}
			beyond := 0
			if p.guessed {
				beyond = 1 + rng.IntN(9)
			}
			if rng.IntN(3) == 0 {
				p.reported = p.predicted
			}
			was := r.Rating()
			changed := r.AddReport(p.predicted, p.predicted+beyond, p.reported)
			w.all = append(w.all, p)
			got, want := r.Rating(), w.judge()
			if got != want || changed != (got != was) {
				t.Fatalf("seed %d, after %d: %v, want %v; changed %v from %v", seed, i+1, got, want, changed, was)
			}
			seen[got]++
		}
	}
	for v := Undecided; v <= Unpredicted; v++ {
		if seen[v] == 0 {
			t.Errorf("never %v", v)
		}
	}
}

// TestRecord checks the ratings at their boundaries.
func TestRecord(t *testing.T) {
	for _, tt := range []struct {
		name             string
		pairs            []sample // each repeated Window times
		want             Rating
		predicted, found int
	}{
		{"nothing", nil, Undecided, 0, 0},
		{"nothing that says anything", []sample{{3, 3}}, Undecided, 0, 0},
		{"as predicted", []sample{{8, 8}}, Fair, 256, 256},
		{"half", []sample{{8, 4}}, Fair, 256, 128},
		{"under half", []sample{{9, 4}}, Overpredicted, 288, 128},
		{"one prompt's surplus is no other's", []sample{{9, 4}, {0, 50}}, Overpredicted, 288, 128},
		{"less was predicted", []sample{{4, 50}}, Fair, 128, 128},
		{"nothing was predicted", []sample{{0, 4}}, Unpredicted, 0, 128},
		{"that was long ago", []sample{{0, 4}, {4, 4}}, Fair, 128, 128},
	} {
		var r Record
		for _, p := range tt.pairs {
			for range Window {
				r.AddReport(p.predicted, p.predicted, p.reported)
			}
		}
		predicted, found := r.Evidence()
		if got := r.Rating(); got != tt.want || predicted != tt.predicted || found != tt.found {
			t.Errorf("%s: %v of %d predicted and %d found, want %v of %d and %d", tt.name, got, predicted, found, tt.want, tt.predicted, tt.found)
		}
	}
	var r Record
	for range Window - 1 {
		r.AddReport(0, 9, 9) // its twin request is being computed
		if r.AddReport(0, 0, 9) {
			t.Error("a verdict of few reports")
		}
	}
	if !r.AddReport(0, 0, 9) || r.Rating().String() != "blind" {
		t.Errorf("%v after a full window", r.Rating())
	}
}
