package prefix

import (
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// floodBlocks is the number of full blocks in a prompt of 500 tokens, in blocks of 16.
const floodBlocks = 31

// coldPrompt sets dst to the blocks of a prompt which shares nothing with the others.
func coldPrompt(n uint64, chain []kv.SeqHash, blocks []kv.BlockHash) {
	var seq kv.SeqHash
	for i := range blocks {
		blocks[i] = kv.BlockHash(splitmix.Mix(n*floodBlocks + uint64(i)))
		seq = kv.ExtendSeq(seq, uint32(i), blocks[i])
		chain[i] = seq
	}
}

// BenchmarkApproxCold sends unknown prompts, 4,000 a second, each of which expires after two seconds. An
// operation is one prompt: its insertion, and the expiry of another one.
func BenchmarkApproxCold(b *testing.B) {
	a := newApprox(b, ApproxConfig{TTL: 2 * time.Second})
	chain, blocks := make([]kv.SeqHash, floodBlocks), make([]kv.BlockHash, floodBlocks)
	n := uint64(0)
	insert := func() {
		n++
		coldPrompt(n, chain, blocks)
		a.RecordSent(kv.Mono(n)*kv.Mono(250*time.Microsecond), one, chain)
	}
	for range 16000 {
		insert()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		insert()
	}
}

// BenchmarkApproxRefuted does the same, and refutes each prompt after 64 others.
func BenchmarkApproxRefuted(b *testing.B) {
	a := newApprox(b, ApproxConfig{TTL: 2 * time.Second})
	chain, blocks := make([]kv.SeqHash, floodBlocks), make([]kv.BlockHash, floodBlocks)
	n := uint64(64)
	insert := func() {
		n++
		coldPrompt(n-64, chain, blocks)
		slices.Reverse(chain)
		a.RetractEvent(one, &kv.Event{Kind: kv.Removed, Seqs: chain})
		coldPrompt(n, chain, blocks)
		a.RecordSent(kv.Mono(n)*kv.Mono(250*time.Microsecond), one, chain)
	}
	for range 16000 {
		insert()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		insert()
	}
}

// BenchmarkApplyCold applies one event per unknown prompt, and one eviction for each, to an index with half a
// million blocks.
func BenchmarkApplyCold(b *testing.B) {
	const kept = 1 << 19 / floodBlocks
	x, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	chain, blocks := make([]kv.SeqHash, floodBlocks), make([]kv.BlockHash, floodBlocks)
	store := func(n uint64) {
		coldPrompt(n, chain, blocks)
		x.ApplyEvent(one, kv.Event{Kind: kv.Stored, Blocks: blocks})
	}
	remove := func(n uint64) {
		coldPrompt(n, chain, blocks)
		x.ApplyEvent(one, kv.Event{Kind: kv.Removed, Seqs: chain})
	}
	n := uint64(0)
	for ; n < kept; n++ {
		store(n)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		store(n)
		remove(n - kept)
		n++
	}
}
