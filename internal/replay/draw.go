package replay

import (
	"math"
	"sort"

	"penstock/core/exact"
	"penstock/core/splitmix"
)

// drawExponential returns a draw from the exponential distribution with mean 1.
func (r *randomSource) drawExponential() float64 { return -exact.Ln(r.drawUnit()) }

// drawNormal returns a draw from the standard normal distribution, by Marsaglia's polar method.
func (r *randomSource) drawNormal() float64 {
	for {
		x, y := float64(2*r.drawUnit())-1, float64(2*r.drawUnit())-1
		q := float64(x*x) + float64(y*y)
		if q > 0 && q < 1 {
			return x * math.Sqrt(-2*exact.Ln(q)/q)
		}
	}
}

// drawGamma returns a draw from the gamma distribution of this shape with mean 1, by Marsaglia and Tsang, "A
// simple method for generating gamma variables" (2000). For shapes below 1 it multiplies by a power of a
// uniform number, as the paper describes.
func (r *randomSource) drawGamma(shape float64) float64 {
	whole, power := shape, 1.0
	if shape < 1 {
		whole, power = shape+1, exact.Exp(exact.Ln(r.drawUnit())/shape)
	}
	d := whole - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.drawNormal()
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = float64(v * v * v)
		if exact.Ln(r.drawUnit()) < float64(float64(x*x)/2)+float64(d*(1-v+exact.Ln(v))) {
			return d * v * power / shape
		}
	}
}

// randomSource is the random source of one part of a workload.
type randomSource struct{ splitmix.Source }

// newRandomSource returns the random source of a purpose under a seed.
func newRandomSource(seed, purpose uint64) randomSource {
	return randomSource{splitmix.Source(splitmix.Mix(splitmix.Mix(seed+splitmix.Step) ^ purpose))}
}

// drawUnit returns a number in (0, 1]: a multiple of 2^-53, whose logarithm exists.
func (r *randomSource) drawUnit() float64 {
	return float64(float64(r.Next()>>11+1) / (1 << 53))
}

// zipfSampler draws from n items with a popularity of 1/rank^a. It takes 8 bytes per item.
type zipfSampler struct {
	cumulative []float64 // popularity summed up to this item
}

func newZipfSampler(n int, a float64) zipfSampler {
	z := zipfSampler{make([]float64, n)}
	sum := 0.0
	for i := range z.cumulative {
		sum += exact.Exp(float64(-a * exact.Ln(float64(i+1))))
		z.cumulative[i] = sum
	}
	return z
}

// drawRank returns a number from 0, the most popular item.
func (z *zipfSampler) drawRank(r *randomSource) int {
	x := r.drawUnit() * z.cumulative[len(z.cumulative)-1]
	return min(sort.SearchFloat64s(z.cumulative, x), len(z.cumulative)-1)
}
