package sim

import (
	"math"
	"testing"
)

func TestJitterStatistics(t *testing.T) {
	const n = 200_000
	for _, c := range []struct{ jitter, sd float64 }{{0.02, 0.02}, {0.1, 0.1}, {0.3, 0.2947}} {
		for _, seed := range []uint64{0, 1, 1 << 63} {
			tm := Timing{Jitter: c.jitter, Seed: seed}
			sum, squares, low, high, twice := 0.0, 0.0, 2.0, 0.0, 0
			for i := range uint64(n) {
				f := tm.jitterFactor(i)
				if f == tm.jitterFactor(i+1) {
					twice++
				}
				sum += f
				squares += (f - 1) * (f - 1)
				low, high = min(low, f), max(high, f)
			}
			// Five standard errors of the mean; 1 % of the deviation.
			if mean := sum / n; math.Abs(mean-1) > 5*c.jitter/math.Sqrt(n) {
				t.Errorf("jitter %v, seed %d: the mean is %v", c.jitter, seed, mean)
			}
			if sd := math.Sqrt(squares / n); math.Abs(sd-c.sd) > 0.01*c.sd {
				t.Errorf("jitter %v, seed %d: the deviation is %v, want %v", c.jitter, seed, sd, c.sd)
			}
			if low < 1-maxDeviation || high > 1+maxDeviation {
				t.Errorf("jitter %v, seed %d: from %v to %v", c.jitter, seed, low, high)
			}
			if c.jitter < 0.3 && twice > 20 {
				t.Errorf("jitter %v, seed %d: %d passes are like the one before", c.jitter, seed, twice)
			}
		}
	}
}

// TestJitterOfNeighbours checks that consecutive passes are independent, and seeds too.
func TestJitterOfNeighbours(t *testing.T) {
	const n = 100_000
	var next, other float64
	for i := range uint64(n) {
		z := normalDraw(7, i)
		next += z * normalDraw(7, i+1)
		other += z * normalDraw(8, i)
	}
	// The sum of n products of independent normal draws has deviation √n.
	if bound := 5 * math.Sqrt(n); math.Abs(next) > bound || math.Abs(other) > bound {
		t.Errorf("correlation with the next pass %v, with the next seed %v", next/n, other/n)
	}
}

func TestJitterIsAFunctionOfSeedAndNumber(t *testing.T) {
	tm := timing(t, "")
	tm.Jitter, tm.Seed = 0.2, 9
	p := Pass{Tokens: 1}
	first := tm.PassDuration(&p, 1000)
	for i := range uint64(100) {
		tm.PassDuration(&p, i)
	}
	if got := tm.PassDuration(&p, 1000); got != first {
		t.Errorf("pass 1000 took %v, then %v", first, got)
	}
	if again := tm; again.PassDuration(&p, 1000) != first {
		t.Error("a copy differs")
	}
	if tm.Seed++; tm.PassDuration(&p, 1000) == first {
		t.Error("another seed gives the same")
	}
}
