package plan

import "penstock/core/exact"

// erlangC returns the chance that a request waits at n servers with an offered load of a, which is below n: the formula
// of Erlang for M/M/n, by the stable recursion of Erlang's B (Cooper, Introduction to Queueing Theory, 2nd ed., 1981,
// section 3.5):
//
//	B(0) = 1    B(i) = a·B(i-1) / (i + a·B(i-1))    C = n·B(n) / (n - a·(1 - B(n)))
func erlangC(n int, a float64) float64 {
	b := 1.0
	for i := 1; i <= n; i++ {
		x := float64(a * b)
		b = x / (float64(i) + x)
	}
	return float64(float64(n)*b) / (float64(n) - float64(a*(1-b)))
}

// waitTail is the distribution of the wait in a queue of n servers, in ms:
//
//	P(wait > t) = C(n, a)·exp(-t/mean)    mean = S/(n-a)·(ca² + cs²)/2
//
// It is exact for M/M/n. For other times of service the mean of waits which are not 0 follows Allen and Cunneen (Allen,
// Probability, Statistics and Queueing Theory, 2nd ed., 1990, section 5.3), and their distribution is taken to be
// exponential, as it is in heavy traffic (Kingman; Whitt, Approximations for the GI/G/m queue, Production and
// Operations Management 2, 1993). One queue stands for all workers because a router gives each request to the worker
// which can begin it first.
type waitTail struct{ chance, mean float64 }

// newWaitTail returns the tail for n servers, arrivals of rate a ms, a mean time of service in ms, and the squared
// coefficient of variation of these times; ok is false if the servers have no more than maxLoad of their time.
// Arrivals are a Poisson process: ca² is 1.
func newWaitTail(n int, rate, service, variation float64) (w waitTail, ok bool) {
	a := float64(rate * service)
	if a > float64(maxLoad*float64(n)) {
		return waitTail{}, false
	}
	if a <= 0 {
		return waitTail{}, true
	}
	return waitTail{chance: erlangC(n, a), mean: service / (float64(n) - a) * (1 + variation) / 2}, true
}

// beyond returns the chance that a wait exceeds t ms; 1 if t is negative.
func (w waitTail) beyond(t float64) float64 {
	switch {
	case t < 0:
		return 1
	case w.chance == 0:
		return 0
	}
	return float64(w.chance * exact.Exp(-t/w.mean))
}

// maxLoad is the share of their time which servers may be busy. Beyond it a queue takes longer than a forecast is good
// for until it has its stationary length.
const maxLoad = 0.95

// poissonTail returns the chance that a Poisson variable exceeds k. It sums the terms relative to the one of the mode,
// outwards until they are below 2^-60 of it, so that no mean is too large.
func poissonTail(mean float64, k int) float64 {
	if mean <= 0 {
		return 0
	}
	if k < 0 {
		return 1
	}
	const least = 1.0 / (1 << 60)
	mode := int(mean)
	above, all := 0.0, 0.0
	count := func(i int, term float64) {
		all += term
		if i > k {
			above += term
		}
	}
	count(mode, 1)
	for i, term := mode, 1.0; i > 0 && term > least; i-- {
		term = float64(term * (float64(i) / mean))
		count(i-1, term)
	}
	for i, term := mode+1, 1.0; term > least; i++ {
		term = float64(term * (mean / float64(i)))
		count(i, term)
	}
	return above / all
}

// lengthDraws are the middles of equally likely parts of a standard normal distribution: its quantiles at 1/32, 3/32 …
// 31/32.
var lengthDraws = [lengthParts]float64{
	-1.8627318674216511, -1.3180108973035367, -1.0099901692495821, -0.7764217611479276,
	-0.5791321622555560, -0.4022500653217252, -0.2372021093287877, -0.0784124127331122,
	0.0784124127331122, 0.2372021093287877, 0.4022500653217252, 0.5791321622555560,
	0.7764217611479276, 1.0099901692495821, 1.3180108973035367, 1.8627318674216511,
}

const lengthParts = 16

// spreadLengths returns equally likely lengths with a mean, of a log-normal distribution with a coefficient of
// variation. Their mean is made exact, which the middles alone miss by the tail.
func spreadLengths(mean, spread float64) [lengthParts]float64 {
	var out [lengthParts]float64
	squared := exact.Ln(1 + float64(spread*spread))
	sum := 0.0
	for i, z := range lengthDraws {
		out[i] = exact.Exp(float64(z*sqrt(squared)) - float64(squared/2))
		sum += out[i]
	}
	for i := range out {
		out[i] *= mean * lengthParts / sum
	}
	return out
}

const (
	// compoundCells is the number of cells on which a compound distribution is computed, and compoundMost the mean number
	// of its parts above which it is taken to be normal.
	compoundCells = 64
	compoundMost  = 100
)

// compoundWithin returns the chance that the sum of a Poisson number of parts, each one of sizes by equal chances, is
// at most y. It is the recursion of Panjer (ASTIN Bulletin 12, 1981) on cells of y/compoundCells:
//
//	g(0) = exp(-mean + mean·f(0))    g(k) = mean/k · sum of j·f(j)·g(k-j)
func compoundWithin(mean float64, sizes *[lengthParts]float64, y float64) float64 {
	switch {
	case y < 0:
		return 0
	case mean <= 0:
		return 1
	case y == 0:
		return exact.Exp(-mean)
	case mean > compoundMost:
		return normalWithin(mean, sizes, y)
	}
	// The part of a size between two cells is shared by them, which keeps the mean.
	var f [compoundCells + 1]float64
	for _, size := range sizes {
		if at := float64(size / y * compoundCells); at < compoundCells+1 {
			low := int(at)
			upper := at - float64(low)
			if low <= compoundCells {
				f[low] += float64((1 - upper) / lengthParts)
			}
			if low < compoundCells {
				f[low+1] += float64(upper / lengthParts)
			}
		}
	}
	var g [compoundCells + 1]float64
	g[0] = exact.Exp(float64(mean*f[0]) - mean)
	sum := g[0]
	for k := 1; k <= compoundCells; k++ {
		for j := 1; j <= k; j++ {
			g[k] += float64(float64(j) * f[j] * g[k-j])
		}
		g[k] = float64(g[k] * (mean / float64(k)))
		sum += g[k]
	}
	return min(sum, 1)
}

// normalWithin is compoundWithin for many parts. The distribution function is the logistic one with 1.702 for the
// scale, which is within 0.01 of the normal one (Bowling et al., Journal of Industrial Engineering and Management 2,
// 2009).
func normalWithin(mean float64, sizes *[lengthParts]float64, y float64) float64 {
	first, second := 0.0, 0.0
	for _, size := range sizes {
		first += float64(size / lengthParts)
		second += float64(float64(size*size) / lengthParts)
	}
	if second == 0 {
		return 1
	}
	z := (y - float64(mean*first)) / sqrt(float64(mean*second))
	return 1 / (1 + exact.Exp(-1.702*z))
}
