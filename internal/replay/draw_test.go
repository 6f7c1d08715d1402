package replay

import (
	"math"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// distance is the statistic of Kolmogorov and Smirnov: the largest difference
// between the distribution of the values and cdf.
func distance(values []float64, cdf func(float64) float64) float64 {
	slices.Sort(values)
	n := float64(len(values))
	worst := 0.0
	for i, v := range values {
		f := cdf(v)
		worst = max(worst, math.Abs(f-float64(i)/n), math.Abs(float64(i+1)/n-f))
	}
	return worst
}

// TestDraws holds the draws against their distributions. Under the right one the
// statistic exceeds 1.63/√n once in a hundred seeds; these seeds do not.
func TestDraws(t *testing.T) {
	const n = 50_000
	limit := 1.63 / math.Sqrt(n)
	gammaOf := func(shape float64) func(float64) float64 {
		return distuv.Gamma{Alpha: shape, Beta: shape}.CDF
	}
	for _, c := range []struct {
		name string
		draw func(r *randomSource) float64
		cdf  func(float64) float64
		off  float64 // a factor that must be noticed
	}{
		{"unit", (*randomSource).drawUnit, func(x float64) float64 { return x }, 1.05},
		{"exponential", (*randomSource).drawExponential, func(x float64) float64 { return -math.Expm1(-x) }, 1.05},
		{"normal", (*randomSource).drawNormal, distuv.UnitNormal.CDF, 1.05},
		{"gamma 0.04", func(r *randomSource) float64 { return r.drawGamma(0.04) }, gammaOf(0.04), 2},
		{"gamma 0.25", func(r *randomSource) float64 { return r.drawGamma(0.25) }, gammaOf(0.25), 1.05},
		{"gamma 1", func(r *randomSource) float64 { return r.drawGamma(1) }, gammaOf(1), 1.05},
		{"gamma 4", func(r *randomSource) float64 { return r.drawGamma(4) }, gammaOf(4), 1.05},
		{"gamma 100", func(r *randomSource) float64 { return r.drawGamma(100) }, gammaOf(100), 1.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRandomSource(7, 7)
			values := make([]float64, n)
			for i := range values {
				values[i] = c.draw(&g)
			}
			if d := distance(values, c.cdf); d > limit {
				t.Errorf("the statistic is %.5f, above %.5f", d, limit)
			}
			if d := distance(values, func(x float64) float64 { return c.cdf(x * c.off) }); d < limit {
				t.Errorf("a distribution that is wrong by a factor of %v passes with %.5f", c.off, d)
			}
		})
	}
}
