package main

import (
	"penstock/core/exact"
	"penstock/core/splitmix"
)

// The generated workload has the shape of Mooncake's conversation trace, as far as an index sees it: 12,031
// requests, of 24 blocks of 512 tokens on average (768 of 16), of 167 at the 99th percentile, about two
// thirds of them new, all after one common block.
const (
	madeRequests  = 12_031
	madeMean      = 2.6 // of the length's logarithm
	madeDeviation = 1.089
	madeMost      = 400 // blocks of 512 tokens
	madeContinue  = 45  // percent of requests which try to continue a conversation
	madeLook      = 24  // conversations which such a request considers
)

// makePrompts draws requests of log-normal length. Some continue the longest of a few recent conversations
// which is shorter than they are, the others start one.
func makePrompts(requests int) [][]uint64 {
	rng := splitmix.Source(1)
	next := uint64(1)
	var out [][]uint64
	var open [][]uint64 // the last prompt of each conversation
	for range requests {
		want := drawLength(&rng)
		at := -1
		if len(open) > 0 && rng.Below(100) < madeContinue {
			for range madeLook {
				c := rng.Below(len(open))
				if n := len(open[c]); n < want && (at < 0 || n > len(open[at])) {
					at = c
				}
			}
		}
		if at < 0 {
			at = len(open)
			open = append(open, []uint64{0})
		}
		prompt := make([]uint64, want)
		for i := copy(prompt, open[at]); i < want; i++ {
			prompt[i] = next
			next++
		}
		open[at] = prompt
		out = append(out, prompt)
	}
	return out
}

// drawLength draws a length in blocks of 512 tokens.
func drawLength(rng *splitmix.Source) int {
	normal := -6.0
	for range 12 {
		normal += float64(rng.Next()>>11) / (1 << 53)
	}
	n := int(exact.Exp(madeMean + float64(madeDeviation*normal)))
	return min(max(n, 1), madeMost)
}
