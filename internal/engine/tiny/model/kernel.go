package model

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// kernel is the arithmetic that most time goes into. All matrices are row-major
// with the given distances between rows.
//
// What makes logits independent of the batch is one property that every kernel
// has: element (i, j) of a product is accumulated over the inner dimension in
// ascending order, one rounding rule for all, whatever m, n and the position of
// the element. Hence a product may be cut along any dimension, and rows and
// columns may be added, without changing a bit.
type kernel interface {
	// name identifies the arithmetic: kernels of different rounding have
	// different names.
	name() string
	// set computes c = a·b, with a of shape [m, k], b [k, n] and c [m, n].
	set(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int)
	// add computes c += a·b.
	add(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int)
	// softmax replaces the first n elements of row by exp(x - max) and returns
	// their sum. row has at least n elements rounded up to a multiple of lanes;
	// what follows the first n is overwritten.
	softmax(row []float32, n int) float32
	// swiglu computes dst = gate · sigmoid(gate) · up, element by element.
	swiglu(dst, gate, up []float32)
}

// lanes is the vector width that rows are padded to.
const lanes = 8

// portable is the kernel for every machine: gonum's products and plain Go.
//
// Of gonum's four products only the one without transposes has the property
// above: it adds a multiple of each row of b to a row of c, in order. Its level-2
// product sums differently, so a single row takes the same way as many.
type portable struct{}

// maxGonum is the largest extent, in either direction, of a product that gonum
// is sure to compute in the calling goroutine: it goes parallel from four
// tiles of 64 × 64 on.
const maxGonum = 64

func (portable) name() string { return "gonum" }

func (portable) set(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	gonumProduct(m, n, k, a, lda, b, ldb, 0, c, ldc)
}

func (portable) add(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	gonumProduct(m, n, k, a, lda, b, ldb, 1, c, ldc)
}

func gonumProduct(m, n, k int, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	for i := 0; i < m; i += maxGonum {
		rows := min(maxGonum, m-i)
		for j := 0; j < n; j += maxGonum {
			cols := min(maxGonum, n-j)
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, rows, cols, k, 1, a[i*lda:], lda, b[j:], ldb, beta, c[i*ldc+j:], ldc)
		}
	}
}

func (portable) softmax(row []float32, n int) float32 {
	row = row[:n]
	highest := float32(math.Inf(-1))
	for _, v := range row {
		highest = max(highest, v)
	}
	var sum float64
	for i, v := range row {
		e := exp(v - highest)
		row[i] = e
		sum += float64(e)
	}
	return float32(sum)
}

func (portable) swiglu(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, g := range gate {
		sigmoid := 1 / (1 + exp(-g))
		dst[i] = float32(g*sigmoid) * up[i]
	}
}
