package model

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// kernel is the arithmetic in which most time is spent. All matrices are row-major with the given distances
// between rows.
//
// Logits are independent of the batch because of one property of every kernel: element (i, j) of a product is
// accumulated over the inner dimension in ascending order, with one rounding rule, whatever m, n and the
// position of the element. Hence a product may be cut along any dimension, and rows and columns may be added,
// without changing a bit.
type kernel interface {
	// kernelName identifies the arithmetic: kernels of different rounding have
	// different names.
	kernelName() string
	// multiplyInto computes c = a·b, with a of shape [m, k], b [k, n] and c [m, n].
	multiplyInto(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int)
	// multiplyAdd computes c += a·b.
	multiplyAdd(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int)
	// panelWidth is the number of columns with which products run fastest.
	panelWidth() int
	// softmax replaces the first n elements of row by exp(x - max) and returns their sum. row has at least n
	// elements rounded up to a multiple of lanes; softmax overwrites the elements after the first n.
	softmax(row []float32, n int) float32
	// swiglu computes dst = gate · sigmoid(gate) · up, element by element.
	swiglu(dst, gate, up []float32)
}

// lanes is the vector width that rows are padded to.
const lanes = 8

// portableKernel is the kernel for every machine: gonum's products and plain Go.
//
// Of gonum's four products only the one without transposes has the kernel's property: it adds a multiple of
// each row of b to a row of c, in order. Its level-2 product sums differently, so a single row uses the same
// product as many.
type portableKernel struct{}

// A product of up to gonumRows rows and gonumCols columns is computed in the calling goroutine: gonum runs in
// parallel from four tiles of 64 × 64 on.
const (
	gonumRows = 64
	gonumCols = 128
)

func (portableKernel) kernelName() string { return "gonum" }

func (portableKernel) panelWidth() int { return gonumCols }

func (portableKernel) multiplyInto(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	gonumProduct(m, n, k, a, lda, b, ldb, 0, c, ldc)
}

func (portableKernel) multiplyAdd(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	gonumProduct(m, n, k, a, lda, b, ldb, 1, c, ldc)
}

func gonumProduct(m, n, k int, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	for i := 0; i < m; i += gonumRows {
		rows := min(gonumRows, m-i)
		for j := 0; j < n; j += gonumCols {
			cols := min(gonumCols, n-j)
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, rows, cols, k, 1, a[i*lda:], lda, b[j:], ldb, beta, c[i*ldc+j:], ldc)
		}
	}
}

func (portableKernel) softmax(row []float32, n int) float32 {
	row = row[:n]
	highest := row[0]
	for _, v := range row {
		if v > highest {
			highest = v
		}
	}
	exponentials(row, highest)
	return sumInterleaved(row)
}

// sumInterleaved adds the elements in four interleaved sums, so that additions do not wait for each other. An
// element's sum depends only on its index.
func sumInterleaved(x []float32) float32 {
	var s0, s1, s2, s3 float64
	for len(x) >= 4 {
		s0 += float64(x[0])
		s1 += float64(x[1])
		s2 += float64(x[2])
		s3 += float64(x[3])
		x = x[4:]
	}
	for i, v := range x {
		switch i {
		case 0:
			s0 += float64(v)
		case 1:
			s1 += float64(v)
		case 2:
			s2 += float64(v)
		}
	}
	return float32((s0 + s1) + (s2 + s3))
}

func (portableKernel) swiglu(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, g := range gate {
		dst[i] = -g
	}
	exponentials(dst, 0)
	for i, g := range gate {
		dst[i] = float32(g/(1+dst[i])) * up[i]
	}
}
