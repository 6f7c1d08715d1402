package splitmix

import "testing"

// TestReference compares the generator with the authors' own outputs (seed 1234567, as xoshiro's page and
// Java's SplittableRandom have it).
func TestReference(t *testing.T) {
	s := Source(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := s.Next(); got != want {
			t.Errorf("output %d is %d, want %d", i, got, want)
		}
	}
}

func TestBelowIsEven(t *testing.T) {
	s := Source(3)
	var counts [7]int
	for range 70_000 {
		counts[s.Below(7)]++
	}
	chi := 0.0
	for _, n := range counts {
		chi += float64((n-10_000)*(n-10_000)) / 10_000
	}
	if chi > 16.8 { // 1 % quantile for 6 degrees of freedom
		t.Errorf("chi square is %.1f for %v", chi, counts)
	}
}
