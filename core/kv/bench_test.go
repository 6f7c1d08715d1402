package kv

import (
	"fmt"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// BenchmarkChain reports the cost of a block of a prompt, next to the bare hash of the same bytes in the same
// run.
func BenchmarkChain(b *testing.B) {
	const blocks = 256
	for _, size := range []int{16, 64, 512} {
		tokens := make([]Token, blocks*size)
		for i := range tokens {
			tokens[i] = Token(i * 2654435761)
		}
		for _, c := range []struct {
			name  string
			media []Media
		}{
			{"text", nil},
			{"media", []Media{{Hash: 1, Start: 0, End: blocks * size}, {Hash: 2, Start: 5, End: blocks * size}}},
		} {
			b.Run(fmt.Sprintf("block=%d/%s", size, c.name), func(b *testing.B) {
				h := hasher(b, size, Salt{})
				chain := make([]SeqHash, 0, blocks)
				b.ReportAllocs()
				for b.Loop() {
					chain = h.AppendSeqHashes(chain[:0], tokens, c.media)
				}
				ours := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / blocks
				raw := bareHash(tokens, size, b.N)
				b.ReportMetric(ours, "ns/block")
				b.ReportMetric(raw, "raw-ns/block")
				b.ReportMetric(ours/raw, "ratio")
			})
		}
	}
}

// bareHash returns the nanoseconds per block of XXH3 alone, over n rounds.
func bareHash(tokens []Token, size, n int) float64 {
	raw := littleEndianBytes(tokens)
	var sum uint64
	begin := time.Now()
	for range n {
		for at := 0; at < len(raw); at += 4 * size {
			sum += xxh3.HashSeed(raw[at:at+4*size], Seed)
		}
	}
	took := time.Since(begin)
	if sum == 0 {
		return 0
	}
	return float64(took.Nanoseconds()) / float64(n) / float64(len(tokens)/size)
}
