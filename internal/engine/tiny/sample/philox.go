package sample

import "math/bits"

// RandomBits returns the 64 uniform bits that decide the token at an output position of a choice: the first
// word of Philox2x64-10 with key seed and counter (position, choice). Philox is the counter-based generator
// of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). position counts
// the choice's output tokens from 0, including those generated elsewhere.
func RandomBits(seed uint64, choice, position int) uint64 {
	const (
		multiplier = 0xD2B74407B1CE6E93
		weyl       = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio
	)
	a, b, key := uint64(position), uint64(choice), seed
	for range 10 {
		high, low := bits.Mul64(multiplier, a)
		a, b = high^key^b, low
		key += weyl
	}
	return a
}
