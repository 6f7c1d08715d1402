//go:build goexperiment.simd && amd64

package model

import (
	"math"
	"simd/archsimd"
	"slices"
)

// fastestKernel returns the kernel that New uses on this machine.
func fastestKernel() kernel {
	if archsimd.X86.AVX2() && archsimd.X86.FMA() {
		return avx2Kernel{}
	}
	return portableKernel{}
}

// avx2Kernel multiplies and adds in one rounding, eight lanes at a time. An element is in one lane of a
// register from the first term of its sum to the last (or is stored and loaded between two calls, which
// changes nothing), whatever the shape of its tile: hence the property which the kernel interface requires.
type avx2Kernel struct{}

func (avx2Kernel) kernelName() string { return "avx2fma" }

func (avx2Kernel) panelWidth() int { return 64 }

func (avx2Kernel) multiplyInto(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	for i := range m {
		clear(c[i*ldc:][:n])
	}
	avx2Kernel{}.multiplyAdd(m, n, k, a, lda, b, ldb, c, ldc)
}

func (avx2Kernel) multiplyAdd(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	if k == 0 {
		return
	}
	full := m - m%4
	for j := 0; j+16 <= n; j += 16 {
		for i := 0; i < full; i += 4 {
			tile4x16(k, a[i*lda:], lda, b[j:], ldb, c[i*ldc+j:], ldc)
		}
	}
	for i := range m {
		j := 0
		if i < full {
			j = n - n%16
		}
		addRow(n-j, k, a[i*lda:], b[j:], ldb, c[i*ldc+j:])
	}
	archsimd.ClearAVXUpperBits()
}

// addRow adds the product of one row of a, for n columns.
func addRow(n, k int, a, b []float32, ldb int, c []float32) {
	j := 0
	for ; j+64 <= n; j += 64 {
		tile1x64(k, a, b[j:], ldb, c[j:])
	}
	for ; j+16 <= n; j += 16 {
		tile1x16(k, a, b[j:], ldb, c[j:])
	}
	for ; j < n; j += lanes {
		tile1x8(k, a, b[j:], ldb, c[j:min(j+lanes, n)])
	}
}

func tile4x16(k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	a0, a1, a2, a3 := a[:k], a[lda:][:k], a[2*lda:][:k], a[3*lda:][:k]
	c0, c1, c2, c3 := c[:16], c[ldc:][:16], c[2*ldc:][:16], c[3*ldc:][:16]
	s00, s01 := archsimd.LoadFloat32x8Slice(c0), archsimd.LoadFloat32x8Slice(c0[8:])
	s10, s11 := archsimd.LoadFloat32x8Slice(c1), archsimd.LoadFloat32x8Slice(c1[8:])
	s20, s21 := archsimd.LoadFloat32x8Slice(c2), archsimd.LoadFloat32x8Slice(c2[8:])
	s30, s31 := archsimd.LoadFloat32x8Slice(c3), archsimd.LoadFloat32x8Slice(c3[8:])
	at := 0
	for p, v0 := range a0 {
		line := b[at:][:16]
		b0, b1 := archsimd.LoadFloat32x8Slice(line), archsimd.LoadFloat32x8Slice(line[8:])
		v := archsimd.BroadcastFloat32x8(v0)
		s00, s01 = v.MulAdd(b0, s00), v.MulAdd(b1, s01)
		v = archsimd.BroadcastFloat32x8(a1[p])
		s10, s11 = v.MulAdd(b0, s10), v.MulAdd(b1, s11)
		v = archsimd.BroadcastFloat32x8(a2[p])
		s20, s21 = v.MulAdd(b0, s20), v.MulAdd(b1, s21)
		v = archsimd.BroadcastFloat32x8(a3[p])
		s30, s31 = v.MulAdd(b0, s30), v.MulAdd(b1, s31)
		at += ldb
	}
	s00.StoreSlice(c0)
	s01.StoreSlice(c0[8:])
	s10.StoreSlice(c1)
	s11.StoreSlice(c1[8:])
	s20.StoreSlice(c2)
	s21.StoreSlice(c2[8:])
	s30.StoreSlice(c3)
	s31.StoreSlice(c3[8:])
}

func tile1x64(k int, a, b []float32, ldb int, c []float32) {
	c = c[:64]
	s0, s1 := archsimd.LoadFloat32x8Slice(c), archsimd.LoadFloat32x8Slice(c[8:])
	s2, s3 := archsimd.LoadFloat32x8Slice(c[16:]), archsimd.LoadFloat32x8Slice(c[24:])
	s4, s5 := archsimd.LoadFloat32x8Slice(c[32:]), archsimd.LoadFloat32x8Slice(c[40:])
	s6, s7 := archsimd.LoadFloat32x8Slice(c[48:]), archsimd.LoadFloat32x8Slice(c[56:])
	at := 0
	for _, v := range a[:k] {
		line := b[at:][:64]
		x := archsimd.BroadcastFloat32x8(v)
		s0 = x.MulAdd(archsimd.LoadFloat32x8Slice(line), s0)
		s1 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[8:]), s1)
		s2 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[16:]), s2)
		s3 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[24:]), s3)
		s4 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[32:]), s4)
		s5 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[40:]), s5)
		s6 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[48:]), s6)
		s7 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[56:]), s7)
		at += ldb
	}
	s0.StoreSlice(c)
	s1.StoreSlice(c[8:])
	s2.StoreSlice(c[16:])
	s3.StoreSlice(c[24:])
	s4.StoreSlice(c[32:])
	s5.StoreSlice(c[40:])
	s6.StoreSlice(c[48:])
	s7.StoreSlice(c[56:])
}

func tile1x16(k int, a, b []float32, ldb int, c []float32) {
	c = c[:16]
	s0, s1 := archsimd.LoadFloat32x8Slice(c), archsimd.LoadFloat32x8Slice(c[8:])
	at := 0
	for _, v := range a[:k] {
		line := b[at:][:16]
		x := archsimd.BroadcastFloat32x8(v)
		s0 = x.MulAdd(archsimd.LoadFloat32x8Slice(line), s0)
		s1 = x.MulAdd(archsimd.LoadFloat32x8Slice(line[8:]), s1)
		at += ldb
	}
	s0.StoreSlice(c)
	s1.StoreSlice(c[8:])
}

// tile1x8 adds eight columns, or as many as c has.
func tile1x8(k int, a, b []float32, ldb int, c []float32) {
	s := loadLanes(c)
	at := 0
	for _, v := range a[:k] {
		s = archsimd.BroadcastFloat32x8(v).MulAdd(loadLanes(b[at:][:len(c)]), s)
		at += ldb
	}
	storeLanes(s, c)
}

// loadLanes loads up to eight elements and pads with zeros. The library's own partial load makes a pointer to
// all eight, which the race detector's pointer checks report as an error.
func loadLanes(x []float32) archsimd.Float32x8 {
	if len(x) == lanes {
		return archsimd.LoadFloat32x8Slice(x)
	}
	var full [lanes]float32
	copy(full[:], x)
	return archsimd.LoadFloat32x8(&full)
}

// storeLanes stores as many elements as x has.
func storeLanes(v archsimd.Float32x8, x []float32) {
	if len(x) == lanes {
		v.StoreSlice(x)
		return
	}
	var full [lanes]float32
	v.Store(&full)
	copy(x, full[:])
}

func (avx2Kernel) softmax(row []float32, n int) float32 {
	row = row[:roundUp(n, lanes)]
	for i := n; i < len(row); i++ {
		row[i] = row[0] // not a new maximum
	}
	highest := archsimd.LoadFloat32x8Slice(row)
	for i := lanes; i < len(row); i += lanes {
		highest = highest.Max(archsimd.LoadFloat32x8Slice(row[i:]))
	}
	shift := archsimd.BroadcastFloat32x8(maxLane(highest))
	for i := n; i < len(row); i++ {
		row[i] = float32(math.Inf(-1)) // its exponential is 0
	}
	var sums archsimd.Float32x8
	for i := 0; i < len(row); i += lanes {
		e := exponentialLanes(archsimd.LoadFloat32x8Slice(row[i:]).Sub(shift))
		e.StoreSlice(row[i:])
		sums = sums.Add(e)
	}
	var s [lanes]float32
	sums.Store(&s)
	archsimd.ClearAVXUpperBits()
	return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
}

func maxLane(x archsimd.Float32x8) float32 {
	var v [lanes]float32
	x.Store(&v)
	return slices.Max(v[:])
}

func (avx2Kernel) swiglu(dst, gate, up []float32) {
	one, zero := archsimd.BroadcastFloat32x8(1), archsimd.BroadcastFloat32x8(0)
	for i := 0; i < len(dst); i += lanes {
		end := min(i+lanes, len(dst))
		g, u := loadLanes(gate[i:end]), loadLanes(up[i:end])
		storeLanes(g.Div(one.Add(exponentialLanes(zero.Sub(g)))).Mul(u), dst[i:end])
	}
	archsimd.ClearAVXUpperBits()
}

// exponentialLanes computes exponentials for eight lanes, with fused products.
func exponentialLanes(x archsimd.Float32x8) archsimd.Float32x8 {
	small, large := x.Less(archsimd.BroadcastFloat32x8(expMin)), x.Greater(archsimd.BroadcastFloat32x8(expMax))
	n := x.Mul(archsimd.BroadcastFloat32x8(log2e)).RoundToEven()
	r := n.MulAdd(archsimd.BroadcastFloat32x8(-ln2Hi), x)
	r = n.MulAdd(archsimd.BroadcastFloat32x8(-ln2Lo), r)
	one := archsimd.BroadcastFloat32x8(1)
	p := archsimd.BroadcastFloat32x8(1. / 5040)
	p = p.MulAdd(r, archsimd.BroadcastFloat32x8(1./720))
	p = p.MulAdd(r, archsimd.BroadcastFloat32x8(1./120))
	p = p.MulAdd(r, archsimd.BroadcastFloat32x8(1./24))
	p = p.MulAdd(r, archsimd.BroadcastFloat32x8(1./6))
	p = p.MulAdd(r, archsimd.BroadcastFloat32x8(1./2))
	p = p.MulAdd(r, one)
	p = p.MulAdd(r, one)
	power := n.ConvertToInt32().Add(archsimd.BroadcastInt32x8(127)).ShiftAllLeft(23).AsFloat32x8()
	var zero archsimd.Float32x8
	infinity := archsimd.BroadcastFloat32x8(float32(math.Inf(1)))
	return zero.Merge(infinity.Merge(p.Mul(power), large), small) // NaN is neither
}
