package sample

import "math"

// exp and log stand in for those of package math, which use fused
// multiply-adds where a processor has them and so differ in the last bit from
// one machine to the next. Here every product is rounded by its conversion
// before it is added.

// exp returns e**x for x <= 0, to about one unit in the last place; below -700
// it returns 0. It reduces x to |r| <= ln(2)/2 by a power of two and sums the
// Taylor series, whose 14th term is below 2^-54.
func exp(x float64) float64 {
	const (
		ln2Hi = 6.93147180369123816490e-01 // the upper 32 bits of ln 2, so that k·ln2Hi is exact
		ln2Lo = 1.90821492927058770002e-10
	)
	if !(x >= -700) {
		return 0
	}
	k := math.Round(float64(x * math.Log2E))
	r := x - float64(k*ln2Hi)
	r -= float64(k * ln2Lo)
	p := 1.0 / 6227020800
	p = 1.0/479001600 + float64(r*p)
	p = 1.0/39916800 + float64(r*p)
	p = 1.0/3628800 + float64(r*p)
	p = 1.0/362880 + float64(r*p)
	p = 1.0/40320 + float64(r*p)
	p = 1.0/5040 + float64(r*p)
	p = 1.0/720 + float64(r*p)
	p = 1.0/120 + float64(r*p)
	p = 1.0/24 + float64(r*p)
	p = 1.0/6 + float64(r*p)
	p = 1.0/2 + float64(r*p)
	p = 1 + float64(r*p)
	p = 1 + float64(r*p)
	return p * math.Float64frombits(uint64(1023+int(k))<<52)
}

// log returns the natural logarithm of x >= 1, to a few units in the last place:
// with x = m·2^k and m in [1/√2, √2), ln m = 2·artanh((m-1)/(m+1)), whose
// series is cut where its terms are below 2^-56.
func log(x float64) float64 {
	m, k := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, k = m*2, k-1
	}
	f := (m - 1) / (m + 1)
	square := float64(f * f)
	var series float64
	for n := 23; n >= 1; n -= 2 {
		series = 1/float64(n) + float64(square*series)
	}
	return float64(float64(k)*math.Ln2) + float64(2*f*series)
}
