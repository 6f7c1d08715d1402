// Package exact has the exponential function, its inverse and the sine with results which are equal on all
// processors, for decisions and random draws which must be the same everywhere.
//
// The functions of package math are not: some are written in assembly, and a processor with fused
// multiply-add rounds once where another rounds twice. These use only single IEEE 754 operations, and convert
// every product before adding it, which forbids the compiler to fuse them. Exp and Ln are within 2 units in the
// last place; near its zero at 1 Ln is within 2^-52.
package exact

import "math"

// ln 2 in two parts: the upper 32 bits, so that its product with an integer of at most 11 bits is exact, and
// the rest.
const (
	ln2High = 6.93147180369123816490e-01
	ln2Low  = 1.90821492927058770002e-10
)

// Exp returns e to the x: 0 below -746, +Inf above 710, 0 for NaN.
//
// With x = n·ln 2 + r and |r| at most ½·ln 2 it is 2^n·(1 + r + r²/2! + … + r¹³/13!); the
// next term is below 2^-57.
func Exp(x float64) float64 {
	switch {
	case x > 710:
		return math.Inf(1)
	case !(x >= -746):
		return 0
	}
	n := math.Round(float64(x * math.Log2E))
	r := x - float64(n*ln2High)
	r -= float64(n * ln2Low)
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
	if n < -1000 || n > 1000 { // the power of two alone may overflow or underflow, the product may not
		return math.Ldexp(p, int(n))
	}
	return p * math.Float64frombits(uint64(1023+int(n))<<52)
}

// Ln returns the natural logarithm of a finite x > 0.
//
// With x = m·2^e and m in [√½, √2) it is e·ln 2 + 2·artanh((m-1)/(m+1)), a series in a
// number below 0.172 whose terms from the 25th power on are below 2^-60.
func Ln(x float64) float64 {
	m, e := math.Frexp(x) // exact; m in [½, 1)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := (m - 1) / (m + 1)
	square := float64(s * s)
	// s + s³/3 + s⁵/5 + … + s²³/23, starting with the smallest term.
	sum := 0.0
	for k := 23; k >= 3; k -= 2 {
		sum = float64((sum + 1/float64(k)) * square)
	}
	series := float64(2*s) + float64(2*float64(s*sum))
	return float64(float64(e)*ln2High) + (series + float64(float64(e)*ln2Low))
}

// SinTurns returns the sine of x turns, a turn being 2π, for |x| below 2^50. The cosine is SinTurns(x + ¼).
//
// With x reduced to [-¼, ¼] turns and y = 2π·x it is y - y³/3! + … + y²¹/21!; the next term is below 2^-59. The error is
// below 2^-51.
func SinTurns(x float64) float64 {
	x -= math.Floor(x)
	switch {
	case x > 0.75:
		x -= 1
	case x > 0.25:
		x = 0.5 - x
	}
	y := float64(x * (2 * math.Pi))
	square := float64(y * y)
	p := 1.0
	for k := 21; k >= 3; k -= 2 {
		p = 1 - float64(square*p)/float64(k*(k-1))
	}
	return float64(y * p)
}
