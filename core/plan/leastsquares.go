package plan

import "math"

func sqrt(x float64) float64 { return math.Sqrt(x) } // correctly rounded on all processors

// normalEquations accumulates a weighted least-squares problem with few unknowns: A·c = b with A the sum of x·xᵀ and b
// the sum x·y. gonum has better conditioned methods; it is written in assembly on some processors and runs goroutines,
// which core must not, so that it is the oracle of the tests. Columns here are indicators, a few amounts and waves,
// whose condition is far from the limit of normal equations.
type normalEquations struct {
	a [][]float64 // the lower half
	b []float64
}

func newNormalEquations(unknowns int) *normalEquations {
	e := &normalEquations{a: make([][]float64, unknowns), b: make([]float64, unknowns)}
	for i := range e.a {
		e.a[i] = make([]float64, i+1)
	}
	return e
}

// addRow adds a row of weight w.
func (e *normalEquations) addRow(x []float64, y, w float64) {
	for i, xi := range x {
		wx := float64(w * xi)
		for j := range i + 1 {
			e.a[i][j] += float64(wx * x[j])
		}
		e.b[i] += float64(wx * y)
	}
}

// decaySums multiplies the weight of all rows so far.
func (e *normalEquations) decaySums(keep float64) {
	for i := range e.a {
		for j := range e.a[i] {
			e.a[i][j] *= keep
		}
		e.b[i] *= keep
	}
}

// leastPivot is the part of a column which the ones before it must not explain. The rest of a column below it is
// rounding, and its coefficient is 0.
const leastPivot = 1e-9

// solve returns the coefficients, by the decomposition of Cholesky. A column which excluded names, or which the ones
// before it explain, has the coefficient 0.
func (e *normalEquations) solve(excluded []bool) []float64 {
	n := len(e.b)
	l := make([][]float64, n)
	c := make([]float64, n)
	skip := make([]bool, n)
	for i := range n {
		l[i] = make([]float64, i+1)
		for j := range i + 1 {
			sum := e.a[i][j]
			for k := range j {
				sum -= float64(l[i][k] * l[j][k])
			}
			switch {
			case skip[j] || i == j && (len(excluded) > 0 && excluded[i] || !(sum > float64(leastPivot*e.a[i][i]))):
				skip[i] = skip[i] || i == j
			case i == j:
				l[i][i] = sqrt(sum)
			default:
				l[i][j] = sum / l[j][j]
			}
		}
	}
	for i := range n {
		if skip[i] {
			continue
		}
		sum := e.b[i]
		for k := range i {
			sum -= float64(l[i][k] * c[k])
		}
		c[i] = sum / l[i][i]
	}
	for i := n - 1; i >= 0; i-- {
		if skip[i] {
			c[i] = 0
			continue
		}
		sum := c[i]
		for k := i + 1; k < n; k++ {
			if !skip[k] {
				sum -= float64(l[k][i] * c[k])
			}
		}
		c[i] = sum / l[i][i]
	}
	return c
}

// solveNonNegative returns coefficients which are not negative: the one whose part is most negative is excluded until
// none is.
func (e *normalEquations) solveNonNegative() []float64 {
	excluded := make([]bool, len(e.b))
	for {
		c := e.solve(excluded)
		worst, part := -1, 0.0
		for i, v := range c {
			if p := float64(v * sqrt(e.a[i][i])); p < part {
				worst, part = i, p
			}
		}
		if worst < 0 {
			return c
		}
		excluded[worst] = true
	}
}
