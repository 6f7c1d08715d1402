package main

import (
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"syscall"
	"time"
)

// cellResult is the result of one cell.
type cellResult struct {
	Tokens         uint64
	Took           time.Duration
	P50, P99       float64     // from send to receive, microseconds
	Client, Server resourceUse // in the measured time
}

// resourceUse is the resource use of a process.
type resourceUse struct {
	CPU    time.Duration
	Allocs uint64
	// Tokens is how many tokens it handled in that time.
	Tokens uint64
}

// resourcesSpent returns the resource use of this process so far.
func resourcesSpent() resourceUse {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r syscall.Rusage
	// It fails only for wrong arguments.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return resourceUse{CPU: time.Duration(r.Utime.Nano() + r.Stime.Nano()), Allocs: m.Mallocs}
}

func (u resourceUse) subtractUsage(before resourceUse) resourceUse {
	return resourceUse{CPU: u.CPU - before.CPU, Allocs: u.Allocs - before.Allocs, Tokens: u.Tokens - before.Tokens}
}

func (r cellResult) tokenRate() float64 { return float64(r.Tokens) / r.Took.Seconds() }

// printBenchLine writes r as a line of "go test -bench".
func (r cellResult) printBenchLine(name string) {
	per := func(total float64, tokens uint64) float64 { return total / float64(max(tokens, 1)) }
	fmt.Printf("Benchmark%s-%d %d %.0f tokens/s %.1f p50-us %.1f p99-us %.3f client-allocs/token %.3f server-allocs/token %.0f client-cpu-ns/token %.0f server-cpu-ns/token\n",
		name, runtime.NumCPU(), r.Tokens, r.tokenRate(), r.P50, r.P99,
		per(float64(r.Client.Allocs), r.Client.Tokens), per(float64(r.Server.Allocs), r.Server.Tokens),
		per(float64(r.Client.CPU), r.Client.Tokens), per(float64(r.Server.CPU), r.Server.Tokens))
}

// octaveHistogram counts durations in buckets a 64th of a power of two wide, so that a quantile is exact to 1.6 %.
type octaveHistogram [64 << octaveBits]uint64

// octaveBits is the binary logarithm of the buckets of a power of two.
const octaveBits = 6

func (h *octaveHistogram) addDuration(d time.Duration) {
	n := uint64(max(d, 1<<octaveBits))
	top := bits.Len64(n) - 1
	h[top<<octaveBits+int(n>>(top-octaveBits)&(1<<octaveBits-1))]++
}

func (h *octaveHistogram) mergeCounts(other *octaveHistogram) {
	for i, n := range other {
		h[i] += n
	}
}

// quantileMicros returns the upper end of the bucket with quantile q, in microseconds.
func (h *octaveHistogram) quantileMicros(q float64) float64 {
	var all, seen uint64
	for _, n := range h {
		all += n
	}
	for i, n := range h {
		if seen += n; n > 0 && float64(seen) >= q*float64(all) {
			octave, part := i>>octaveBits, i&(1<<octaveBits-1)
			return math.Ldexp(float64(1<<octaveBits+part+1), octave-octaveBits) / 1e3
		}
	}
	return 0
}
