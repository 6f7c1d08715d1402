package tiny

import (
	"math"
	"runtime"
	"sync"

	"penstock/core/splitmix"
)

// fillNormal sets every element of dst to a pseudo-random number with mean 0 and the given standard
// deviation. The numbers are a function of seed and index in integer arithmetic and one rounding, hence the
// same on every machine. They are nearly normal: the sum of four uniform 16-bit integers (Irwin–Hall), all
// taken from one SplitMix64 output.
func fillNormal(dst []float32, seed uint64, deviation float64) {
	// A uniform integer below 2^16 has variance (2^32 - 1)/12; four add up.
	// Square root and division are exactly rounded by IEEE 754.
	scale := float32(deviation / math.Sqrt((1<<32-1)/3.0))
	const mean = 2 * (1<<16 - 1)
	const chunk = 1 << 16

	var wg sync.WaitGroup
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	for start := 0; start < len(dst); start += chunk {
		part := dst[start:min(start+chunk, len(dst))]
		room <- struct{}{}
		wg.Go(func() {
			for i := range part {
				x := randomOutput(seed, uint64(start+i))
				sum := int32(x&0xffff) + int32(x>>16&0xffff) + int32(x>>32&0xffff) + int32(x>>48)
				part[i] = float32(sum-mean) * scale
			}
			<-room
		})
	}
	wg.Wait()
}

// randomOutput returns output number i of the generator with this seed.
func randomOutput(seed, i uint64) uint64 { return splitmix.Mix(seed + (i+1)*splitmix.Step) }
