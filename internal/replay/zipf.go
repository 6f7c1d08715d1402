package replay

import (
	"sort"

	"penstock/core/exact"
)

// zipf draws from n things with a popularity of 1/rank^a. It takes 8 bytes for
// each.
type zipf struct {
	upTo []float64 // popularity of this thing and those before it
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

// draw returns a number from 0, the most popular thing.
func (z *zipf) draw(r *random) int {
	x := r.unit() * z.upTo[len(z.upTo)-1]
	return min(sort.SearchFloat64s(z.upTo, x), len(z.upTo)-1)
}
