package checkpoint

import (
	"encoding/binary"
	"math"
	"testing"
)

// TestHalf compares every F16 with its definition.
func TestHalf(t *testing.T) {
	for bits := range 1 << 16 {
		exponent, fraction := bits>>10&31, bits&1023
		var want float64
		switch exponent {
		case 0:
			want = math.Ldexp(float64(fraction), -24)
		case 31:
			want = math.Inf(1)
			if fraction != 0 {
				want = math.NaN()
			}
		default:
			want = math.Ldexp(float64(1024+fraction), exponent-25)
		}
		if bits>>15 == 1 {
			want = -want
		}
		got := float64(fromHalf(uint16(bits)))
		if got != want && !(got != got && want != want) || math.Signbit(got) != (bits>>15 == 1) {
			t.Fatalf("%#04x is %v, want %v", bits, got, want)
		}
	}
}

// TestBrainFloat checks that every BF16 is the upper half of a float32.
func TestBrainFloat(t *testing.T) {
	src := make([]byte, 2<<16)
	for bits := range 1 << 16 {
		binary.LittleEndian.PutUint16(src[2*bits:], uint16(bits))
	}
	dst := make([]float32, 1<<16)
	convertElements(dst, src, "BF16")
	for bits, v := range dst {
		if got := math.Float32bits(v); got != uint32(bits)<<16 {
			t.Fatalf("%#04x is %#08x", bits, got)
		}
	}
}
