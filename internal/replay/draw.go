package replay

import (
	"math"

	"penstock/core/exact"
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
