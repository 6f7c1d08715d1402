package replay

import (
	"sort"

	"penstock/core/exact"
)

// zipfSampler draws from n items with a popularity of 1/rank^a. It takes 8 bytes per item.
type zipf struct {
	upTo []float64 // popularity summed up to this item
}

func newZipf(n int, a float64) zipf {
	z := zipf{make([]float64, n)}
	sum := 0.0
	for i := range z.upTo {
		sum += exact.Exp(float64(-a * exact.Ln(float64(i+1))))
		z.upTo[i] = sum
	}
	return z
}

// drawRank returns a number from 0, the most popular item.
func (z *zipf) draw(r *random) int {
	x := r.unit() * z.upTo[len(z.upTo)-1]
	return min(sort.SearchFloat64s(z.upTo, x), len(z.upTo)-1)
}
