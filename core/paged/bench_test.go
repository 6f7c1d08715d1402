package paged

import (
	"fmt"
	"testing"

	"penstock/core/kv"
)

// BenchmarkDecode measures a step and its commit with 256 decoding sequences.
func BenchmarkDecode(b *testing.B) {
	const n, length = 256, 64
	_, advance := decoding(b, n, length, 16)
	left := 8
	b.ReportAllocs()
	for b.Loop() {
		if left == 0 { // before contexts end, start over
			b.StopTimer()
			_, advance = decoding(b, n, length, 256)
			left = 250
			b.StartTimer()
		}
		advance()
		left--
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/seq-step")
}

// BenchmarkAdmit measures a prompt of 1024 blocks: admission with all of them cached except the last, one
// step, commit and removal.
func BenchmarkAdmit(b *testing.B) {
	for _, size := range []int{16, 64, 512} {
		const blocks = 1024
		b.Run(fmt.Sprintf("block=%d", size), func(b *testing.B) {
			s, err := New(Config{Blocks: 2 * blocks, BlockSize: size, MaxSeqs: 1, TokenBudget: blocks * size, MaxContext: 2 * blocks * size, MaxWaiting: 1})
			if err != nil {
				b.Fatal(err)
			}
			seq := Sequence{Tokens: prompt(0, blocks*size), Prompt: blocks * size}
			var step Step
			serve := func() {
				if err := s.AddSequence(seq); err != nil {
					b.Fatal(err)
				}
				s.Step(&step)
				s.Commit(nil)
				s.RemoveSequence(seq.ID)
			}
			serve()
			b.ReportAllocs()
			for b.Loop() {
				serve()
			}
			if got := step.Work[0].Cached; got != (blocks-1)*size {
				b.Fatalf("%d tokens were cached", got)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
		})
	}
}

// BenchmarkEvict measures a prompt of 64 uncached blocks in a full cache.
func BenchmarkEvict(b *testing.B) {
	const blocks, size = 64, 16
	s, err := New(Config{Blocks: 1024, BlockSize: size, MaxSeqs: 1, TokenBudget: blocks * size, MaxContext: 1024 * size, MaxWaiting: 1})
	if err != nil {
		b.Fatal(err)
	}
	tokens := prompt(0, blocks*size)
	var step Step
	var events []kv.Event
	for i := 0; b.Loop(); i++ {
		tokens[0] = kv.Token(i)
		if err := s.AddSequence(Sequence{Tokens: tokens, Prompt: len(tokens)}); err != nil {
			b.Fatal(err)
		}
		s.Step(&step)
		s.Commit(nil)
		s.RemoveSequence(0)
		events = s.AppendEvents(events[:0])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
}
