package replay

import "math"

// The functions of this file are those of package math whose results differ
// between processors, because some versions of them are written in assembly and because a
// processor that multiplies and adds in one step rounds once. These consist of single
// operations of IEEE 754, and every product that is added to something is converted, which
// forbids the compiler to fuse it. They are within 2 units in the last place, or an
// absolute 2^-52 near the zero of ln.

const (
	ln2High = 6.93147180369123816490e-01 // the upper 33 bits of ln 2: n·ln2High is exact
	ln2Low  = 1.90821492927058770002e-10
)

// ln returns the natural logarithm of x > 0: with x = m·2^e and m around 1, it is
// e·ln 2 + 2·artanh((m-1)/(m+1)), a series in a number below 0.172.
func ln(x float64) float64 {
	m, e := math.Frexp(x) // exact; m in [½, 1)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := (m - 1) / (m + 1)
	square := float64(s * s)
	// s + s³/3 + s⁵/5 + … + s²³/23, from its small end.
	sum := 0.0
	for k := 23; k >= 3; k -= 2 {
		sum = float64((sum + 1/float64(k)) * square)
	}
	series := float64(2*s) + float64(2*float64(s*sum))
	return float64(float64(e)*ln2High) + (series + float64(float64(e)*ln2Low))
}

// exp returns e to the x: with x = n·ln 2 + r and |r| at most ½·ln 2, it is
// 2^n·(1 + r + r²/2! + … + r¹⁴/14!).
func exp(x float64) float64 {
	switch {
	case x < -745:
		return 0
	case x > 709:
		return math.Inf(1)
	}
	n := math.Floor(float64(x/math.Ln2) + 0.5)
	r := (x - float64(n*ln2High)) - float64(n*ln2Low)
	sum := 1.0
	for k := 14.0; k >= 1; k-- {
		sum = 1 + float64(r*sum)/k
	}
	return math.Ldexp(sum, int(n))
}

// exponential returns a draw from the exponential distribution with mean 1.
func (r *random) exponential() float64 { return -ln(r.unit()) }

// normal returns a draw from the standard normal distribution, by Marsaglia's polar
// method.
func (r *random) normal() float64 {
	for {
		x, y := float64(2*r.unit())-1, float64(2*r.unit())-1
		q := float64(x*x) + float64(y*y)
		if q > 0 && q < 1 {
			return x * math.Sqrt(-2*ln(q)/q)
		}
	}
}

// gamma returns a draw from the gamma distribution of this shape with mean 1: by
// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); for
// shapes below 1 as they say there, by a power of a uniform number.
func (r *random) gamma(shape float64) float64 {
	whole, power := shape, 1.0
	if shape < 1 {
		whole, power = shape+1, exp(ln(r.unit())/shape)
	}
	d := whole - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.normal()
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = float64(v * v * v)
		if ln(r.unit()) < float64(float64(x*x)/2)+float64(d*(1-v+ln(v))) {
			return d * v * power / shape
		}
	}
}
