package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func randomFloats(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// packed returns a matrix and the weights it was made from, [cols, rows].
func packed(rng *rand.Rand, rows, cols, wide int) (*matrix, []float32) {
	src := randomFloats(rng, rows*cols)
	w := newMatrix(rows, cols, wide)
	w.packColumns(0, src)
	return w, src
}

func multiplyAll(k kernel, w *matrix, n int, a, c []float32) {
	for p := range w.panelCount() {
		w.multiplyPanel(k, p, n, a, c[p*w.panelWidth:], w.cols)
	}
}

// TestRowsAlone proves that a row of a product of any number of rows, from 1 to 600, is the row computed
// alone, bit for bit, whichever of gonum's or our own paths the number takes. The first shape tries every
// number; the shapes of the built-in model try the numbers around the edges of tiles.
func TestRowsAlone(t *testing.T) {
	every := make([]int, 0, 600)
	for n := 1; n <= 600; n++ {
		every = append(every, n)
	}
	edges := []int{1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 63, 64, 65, 66, 127, 128, 129, 191, 192, 193, 255, 256, 257, 600}
	for _, shape := range []struct {
		rows, cols int
		counts     []int
	}{
		{65, 75, every},           // rows cross depth by one, columns fill no vector
		{256, 512, edges},         // query, key, value
		{256, 256, edges},         // output of attention
		{256, 1408, edges},        // gate and up
		{704, 256, edges},         // down
		{256, 2048, edges},        // head
		{32, 144, edges},          // the fixtures'
		{1, 1, edges},             // nothing smaller
		{2049, 130, []int{2, 65}}, // a deep sum, a narrow last panel
	} {
		for _, k := range kernels() {
			t.Run(fmt.Sprintf("%dx%d/%s", shape.rows, shape.cols, k.kernelName()), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(11, uint64(shape.cols)))
				w, _ := packed(rng, shape.rows, shape.cols, k.panelWidth())
				const most = 600
				a := randomFloats(rng, most*shape.rows)
				alone, together := make([]float32, most*shape.cols), make([]float32, most*shape.cols)
				for i := range most {
					multiplyAll(k, w, 1, a[i*shape.rows:], alone[i*shape.cols:])
				}
				for _, n := range shape.counts {
					multiplyAll(k, w, n, a, together)
					if err := sameBits(together[:n*shape.cols], alone[:n*shape.cols]); err != nil {
						t.Fatalf("%d rows: %v", n, err)
					}
				}
			})
		}
	}
}

// TestProductOrder checks each kernel's one rule: every element is summed over the inner dimension in order,
// rounded after each term. The twin follows it literally.
func TestProductOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 12))
	for _, k := range kernels() {
		for range 300 {
			m, n, depth := 1+rng.IntN(9), 1+rng.IntN(90), 1+rng.IntN(40)
			lda, ldb, ldc := depth+rng.IntN(3), n+rng.IntN(3), n+rng.IntN(3)
			a, b, c := randomFloats(rng, m*lda), randomFloats(rng, depth*ldb), randomFloats(rng, m*ldc)
			want := append([]float32(nil), c...)
			got := append([]float32(nil), c...)
			for i := range m {
				for j := range n {
					for p := range depth {
						want[i*ldc+j] = accumulate(k, want[i*ldc+j], a[i*lda+p], b[p*ldb+j])
					}
				}
			}
			k.multiplyAdd(m, n, depth, a, lda, b, ldb, got, ldc)
			if err := sameBits(got, want); err != nil {
				t.Fatalf("%s add %d×%d×%d: %v", k.kernelName(), m, n, depth, err)
			}
			// multiplyInto is multiplyAdd over zeros, and touches nothing outside its columns.
			for i := range m {
				for j := range n {
					want[i*ldc+j] = 0
					for p := range depth {
						want[i*ldc+j] = accumulate(k, want[i*ldc+j], a[i*lda+p], b[p*ldb+j])
					}
				}
			}
			k.multiplyInto(m, n, depth, a, lda, b, ldb, got, ldc)
			if err := sameBits(got, want); err != nil {
				t.Fatalf("%s set %d×%d×%d: %v", k.kernelName(), m, n, depth, err)
			}
		}
	}
}

// accumulate is one step of a sum as kernel k rounds it. A fused step is exact in float64 (24 + 24 bits of
// product) except for the addition, which is rounded to odd so that the rounding to float32 is the only one.
func accumulate(k kernel, sum, x, y float32) float32 {
	if k.kernelName() == "gonum" {
		return sum + float32(x*y)
	}
	product := float64(x) * float64(y)
	total := product + float64(sum)
	// The error of the addition, exactly (Knuth's two-sum).
	part := total - product
	lost := (product - (total - part)) + (float64(sum) - part)
	if lost != 0 && math.Float64bits(total)&1 == 0 {
		if (lost > 0) == (total > 0) {
			total = math.Float64frombits(math.Float64bits(total) + 1)
		} else {
			total = math.Float64frombits(math.Float64bits(total) - 1)
		}
	}
	return float32(total)
}

// TestPack compares the layout with the plain product, and columns with what was packed.
func TestPack(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 13))
	const wide = 24
	for _, cols := range []int{1, wide - 1, wide, wide + 1, 3*wide + 5} {
		const rows = 7
		w, src := packed(rng, rows, cols, wide)
		row, column := make([]float32, cols), make([]float32, rows)
		multiplyAll(portableKernel{}, w, 1, []float32{0, 0, 0, 1, 0, 0, 0}, row)
		for col := range cols {
			w.copyColumn(column, col)
			if err := sameBits(column, src[col*rows:][:rows]); err != nil {
				t.Fatalf("column %d of %d: %v", col, cols, err)
			}
			if row[col] != src[col*rows+3] {
				t.Fatalf("column %d of %d is not where the product finds it", col, cols)
			}
		}
	}
}

// TestSoftmax compares values with float64, and checks that they depend only on the row's own elements.
func TestSoftmax(t *testing.T) {
	rng := rand.New(rand.NewPCG(14, 14))
	for _, k := range kernels() {
		for n := 1; n < 200; n++ {
			row := make([]float32, roundUp(n, lanes)+lanes)
			for i := range row {
				row[i] = float32(rng.NormFloat64() * 4)
			}
			again := append([]float32(nil), row...)
			for i := n; i < len(again); i++ {
				again[i] = float32(math.NaN())
			}
			want := append([]float32(nil), row[:n]...)
			total := k.softmax(row[:roundUp(n, lanes)], n)
			if totalAgain := k.softmax(again[:roundUp(n, lanes)], n); total != totalAgain {
				t.Fatalf("%s: the sum of %d depends on what follows", k.kernelName(), n)
			}
			if err := sameBits(again[:n], row[:n]); err != nil {
				t.Fatalf("%s: %d depend on what follows: %v", k.kernelName(), n, err)
			}
			checkSoftmax(t, want, row[:n], total)
		}
	}
}

func checkSoftmax(t *testing.T, scores, exps []float32, total float32) {
	t.Helper()
	var sum float64
	for _, v := range scores {
		sum += math.Exp(float64(v))
	}
	for i, v := range scores {
		got, want := float64(exps[i])/float64(total), math.Exp(float64(v))/sum
		if math.Abs(got-want) > 3e-6*want { // scores below 20 are rounded to 1e-6
			t.Fatalf("%d of %d: got %v, want %v", i, len(scores), got, want)
		}
	}
}

func TestSwiGLU(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 15))
	for _, k := range kernels() {
		for n := 1; n < 40; n++ {
			gate, up, got := randomFloats(rng, n), randomFloats(rng, n), make([]float32, n)
			for i := range gate {
				gate[i] *= 30
			}
			gate[0] = []float32{-1e30, 1e30, -90, 90, 0}[n%5]
			k.swiglu(got, gate, up)
			for i, g := range gate {
				want := float64(g) / (1 + math.Exp(-float64(g))) * float64(up[i])
				if math.Abs(float64(got[i])-want) > 1e-6*math.Abs(want)+1e-30 {
					t.Fatalf("%s: swiglu(%v, %v) is %v, want %v", k.kernelName(), g, up[i], got[i], want)
				}
			}
		}
	}
}

func TestExponential(t *testing.T) {
	for _, k := range kernels() {
		for v := float32(-100); v < 0; v += 0.0137 {
			// The second of a row whose maximum is 0: exp(v) itself.
			row := make([]float32, lanes)
			row[1] = v
			k.softmax(row, 2)
			want := math.Exp(float64(v))
			if v < expMin {
				want = 0
			}
			if got := float64(row[1]); math.Abs(got-want) > 2e-7*want {
				t.Fatalf("%s: exp(%v) is %v, want %v", k.kernelName(), v, got, want)
			}
		}
		nan := []float32{0, float32(math.NaN()), 0, 0, 0, 0, 0, 0}
		if k.softmax(nan, 2); nan[1] == nan[1] {
			t.Fatalf("%s: the exponential of NaN is %v", k.kernelName(), nan[1])
		}
	}
}
