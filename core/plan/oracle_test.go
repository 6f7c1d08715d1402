package plan

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat/distuv"
	"pgregory.net/rapid"
)

// TestLeastSquares compares with the QR decomposition of gonum.
func TestLeastSquares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unknowns := rapid.IntRange(1, 6).Draw(t, "unknowns")
		rows := unknowns + rapid.IntRange(2, 40).Draw(t, "rows")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		a, b := mat.NewDense(rows, unknowns, nil), mat.NewVecDense(rows, nil)
		e := newNormalEquations(unknowns)
		for i := range rows {
			x := make([]float64, unknowns)
			for j := range x {
				x[j] = rng.NormFloat64() * math.Pow(100, float64(j))
			}
			y, w := rng.NormFloat64(), 0.1+rng.Float64()
			e.addRow(x, y, w)
			for j := range x {
				a.Set(i, j, x[j]*math.Sqrt(w))
			}
			b.SetVec(i, y*math.Sqrt(w))
		}
		var want mat.VecDense
		if err := want.SolveVec(a, b); err != nil {
			t.Fatalf("gonum: %v", err) // rows of random numbers, more than unknowns, are never singular
		}
		for j, got := range e.solve(nil) {
			if scale := math.Pow(100, float64(j)); math.Abs(got-want.AtVec(j))*scale > 1e-6 {
				t.Fatalf("coefficient %d is %g, want %g", j, got, want.AtVec(j))
			}
		}
		for j, c := range e.solveNonNegative() {
			if c < 0 {
				t.Fatalf("coefficient %d is %g", j, c)
			}
		}
	})
}

// TestDependentColumns: a column which others explain has no part.
func TestDependentColumns(t *testing.T) {
	e := newNormalEquations(3)
	for x := range 10 {
		e.addRow([]float64{1, float64(x), 2 * float64(x)}, 3+4*float64(x), 1)
	}
	c := e.solve(nil)
	if math.Abs(c[0]-3) > 1e-9 || math.Abs(c[1]-4) > 1e-9 || c[2] != 0 {
		t.Errorf("the coefficients are %v", c)
	}
}

// TestPoissonTail compares with gonum.
func TestPoissonTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mean := rapid.Float64Range(0.001, 5000).Draw(t, "mean")
		k := int(mean + math.Sqrt(mean)*rapid.Float64Range(-6, 6).Draw(t, "deviations"))
		want := 1.0
		if k >= 0 {
			want = distuv.Poisson{Lambda: mean}.Survival(float64(k))
		}
		if got := poissonTail(mean, k); math.Abs(got-want) > 1e-9 {
			t.Fatalf("P(N > %d) of mean %g is %g, want %g", k, mean, got, want)
		}
	})
}

// TestErlangC compares with the formula in Poisson terms: C = p/(p + (1-ρ)·P), with p and P the chances of n and of
// less than n.
func TestErlangC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 400).Draw(t, "servers")
		a := float64(n) * rapid.Float64Range(0.01, 0.99).Draw(t, "load")
		p := distuv.Poisson{Lambda: a}
		at, below := p.Prob(float64(n)), p.CDF(float64(n-1))
		want := at / (at + (1-a/float64(n))*below)
		if got := erlangC(n, a); math.Abs(got-want) > 1e-9*(1+want) {
			t.Fatalf("C(%d, %g) is %g, want %g", n, a, got, want)
		}
	})
}

// freeTimes are the times at which servers get free.
type freeTimes []float64

func (f freeTimes) Len() int           { return len(f) }
func (f freeTimes) Less(i, j int) bool { return f[i] < f[j] }
func (f freeTimes) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *freeTimes) Push(x any)        { *f = append(*f, x.(float64)) }
func (f *freeTimes) Pop() any          { panic("not used") }

// simulateWaits returns the share of waits beyond t in a queue of n servers, with log-normal times of service.
func simulateWaits(n int, rate, service, variation, t float64) float64 {
	rng := rand.New(rand.NewPCG(7, 7))
	free := make(freeTimes, n)
	sigma := math.Sqrt(math.Log(1 + variation))
	now, late, all := 0.0, 0, 400_000
	for range all {
		now += rng.ExpFloat64() / rate
		begin := max(now, free[0])
		if begin-now > t {
			late++
		}
		free[0] = begin + service*math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)
		heap.Fix(&free, 0)
	}
	return float64(late) / float64(all)
}

// TestWaitTail compares the formula with a simulated queue, where loads and waits are such as planners see.
func TestWaitTail(t *testing.T) {
	for _, c := range []struct {
		n               int
		load, variation float64
	}{{1, 0.6, 1}, {1, 0.8, 0.25}, {4, 0.7, 1}, {4, 0.9, 0.25}, {16, 0.8, 2}, {64, 0.9, 1}, {64, 0.7, 4}} {
		service := 100.0
		rate := c.load * float64(c.n) / service
		w, ok := newWaitTail(c.n, rate, service, c.variation)
		if !ok {
			t.Fatalf("%+v has no stationary wait", c)
		}
		for _, wait := range []float64{0, 50, 200} {
			want := simulateWaits(c.n, rate, service, c.variation, wait)
			if got := w.beyond(wait); math.Abs(got-want) > 0.06 {
				t.Errorf("%+v: P(wait > %g) is %.3f, and %.3f in the simulation", c, wait, got, want)
			}
		}
	}
	if _, ok := newWaitTail(2, 0.02, 100, 1); ok {
		t.Error("two servers with the work of two have a stationary wait")
	}
}

// TestSpreadLengths: lengths have the mean, and nearly the spread.
func TestSpreadLengths(t *testing.T) {
	for _, spread := range []float64{0, 0.5, 1, 2} {
		mean, squares := 0.0, 0.0
		for _, x := range spreadLengths(1000, spread) {
			mean += x / lengthParts
			squares += x * x / lengthParts
		}
		got := math.Sqrt(max(squares-mean*mean, 0)) / mean
		if math.Abs(mean-1000) > 1e-6 || got > spread+1e-6 || got < 0.65*spread {
			t.Errorf("lengths of spread %g have the mean %g and the spread %g", spread, mean, got)
		}
	}
}

// TestCompoundWithin compares with draws.
func TestCompoundWithin(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	sizes := spreadLengths(50, 1)
	src := rand.NewPCG(4, 4)
	for _, mean := range []float64{0.1, 2, 20, 90, 110, 1000} {
		number := distuv.Poisson{Lambda: mean, Src: src}
		for _, times := range []float64{0.2, 0.7, 1, 1.3, 2, 6} {
			y, within, all := 50*mean*times+20, 0, 20_000
			for range all {
				sum := 0.0
				for range int(number.Rand()) {
					sum += sizes[rng.IntN(lengthParts)]
				}
				if sum <= y {
					within++
				}
			}
			if got, want := compoundWithin(mean, &sizes, y), float64(within)/float64(all); math.Abs(got-want) > 0.03 {
				t.Errorf("P(W <= %.0f) with %g parts in the mean is %.3f, and %.3f of draws", y, mean, got, want)
			}
		}
	}
	for _, c := range []struct{ mean, y, want float64 }{{5, -1, 0}, {0, 1, 1}, {1, 0, math.Exp(-1)}} {
		if got := compoundWithin(c.mean, &sizes, c.y); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("P(W <= %g) with %g parts is %g, want %g", c.y, c.mean, got, c.want)
		}
	}
}
