package model

import (
	"math"

	"penstock/core/exact"
)

// normalizeRow writes the norm of x into dst. Mean and variance are summed in order, as float64.
func (n *layerNorm) normalizeRow(dst, x []float32) {
	var sum, squares float64
	for _, v := range x {
		sum += float64(v)
	}
	mean := sum / float64(len(x))
	for _, v := range x {
		d := float64(v) - mean
		squares += float64(d * d)
	}
	scale := 1 / math.Sqrt(squares/float64(len(x))+layerEps)
	dst, weight, bias := dst[:len(x)], n.weight[:len(x)], n.bias[:len(x)]
	for i, v := range x {
		dst[i] = float32(weight[i]*float32(float64((float64(v)-mean)*scale))) + bias[i]
	}
}

// quickSlope is the slope of the sigmoid in applyQuickGELU.
const quickSlope = 1.702

// applyQuickGELU replaces each x by x·sigmoid(1.702·x), which is g·sigmoid(g)·(1/1.702) with g = 1.702·x.
func applyQuickGELU(k kernel, x []float32) {
	var gate, up [64]float32
	for i := range up {
		up[i] = 1 / quickSlope
	}
	for len(x) > 0 {
		n := min(len(x), len(gate))
		for i, v := range x[:n] {
			gate[i] = v * quickSlope
		}
		k.swiglu(x[:n], gate[:n], up[:n])
		x = x[n:]
	}
}

// applyGELU replaces each x by x·Φ(x), with the distribution of a normal variable.
func applyGELU(x []float32) {
	for i, v := range x {
		x[i] = float32(float64(v) * (0.5 + float64(0.5*erf(float64(v)/math.Sqrt2))))
	}
}

// erf is the error function within 1.5e-7, the same on every machine: formula 7.1.26 of Abramowitz and
// Stegun's tables.
func erf(x float64) float64 {
	t := 1 / (1 + float64(0.3275911*math.Abs(x)))
	p := float64(1.061405429*t) - 1.453152027
	p = float64(p*t) + 1.421413741
	p = float64(p*t) - 0.284496736
	p = float64(p*t) + 0.254829592
	y := 1 - float64(float64(p*t)*exact.Exp(-float64(x*x)))
	return math.Copysign(y, x)
}

// The exponential is computed as exp(x) = 2^n · exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2. ln 2 is
// subtracted in two parts, and the first one has so few bits that n times it is exact; exp(r) is its Taylor
// series up to r^7, whose remainder is below 6e-9.
const (
	log2e  = 1.44269504088896341
	ln2Hi  = 0.693359375             // 355/512
	ln2Lo  = -2.12194440054690583e-4 // ln 2 - ln2Hi
	expMin = -87                     // exp below it is set to 0; it would be subnormal
	expMax = 88                      // exp above it is set to infinity; it would be infinite from 88.72 on
	// magic rounds to an integer when added and subtracted: beyond 2^23 a
	// float32 has no fraction bits.
	magic = 0x1.8p23
)

// exponentials replaces each x by e to the (x - shift), with a relative error below 2e-7. Every operation is
// rounded separately (the conversions forbid fusing), so that results are the same on every machine. The
// standard library's exponential differs between processors of one architecture.
func exponentials(x []float32, shift float32) {
	for i, v := range x {
		v -= shift
		if !(v >= expMin) { // or not a number
			if v == v {
				v = 0
			}
			x[i] = v
			continue
		}
		if v > expMax {
			x[i] = float32(math.Inf(1))
			continue
		}
		n := float32(float32(v*log2e)+magic) - magic
		r := v - float32(n*ln2Hi)
		r -= float32(n * ln2Lo)
		p := float32(r*(1./5040)) + 1./720
		p = float32(r*p) + 1./120
		p = float32(r*p) + 1./24
		p = float32(r*p) + 1./6
		p = float32(r*p) + 1./2
		p = float32(r*p) + 1
		p = float32(r*p) + 1
		x[i] = p * math.Float32frombits(uint32(int32(n)+127)<<23)
	}
}
