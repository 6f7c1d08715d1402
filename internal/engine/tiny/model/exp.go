package model

import "math"

// The exponential is computed as exp(x) = 2^n · exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2. ln 2 is
// subtracted in two parts, the first of which has so few bits that n times it is exact; exp(r) is its Taylor
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
