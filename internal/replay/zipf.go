package replay

import (
	"sort"

	"penstock/core/exact"
)

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
