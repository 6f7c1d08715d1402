package engineevents

import (
	"testing"

	"penstock/core/kv"
	"penstock/core/prefix"
)

// BenchmarkDecode measures decoding a store of 32 blocks of 16 tokens, compared with a decoder which builds
// values of everything.
func BenchmarkDecode(b *testing.B) {
	shapes := []struct {
		name    string
		payload []byte
	}{{"array", storeOf(1, 0, 32, 16, false)}, {"map", storeOf(1, 0, 32, 16, true)}}
	for _, s := range shapes {
		b.Run(s.name, func(b *testing.B) {
			var d Decoder
			var batch Batch
			b.SetBytes(int64(len(s.payload)))
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(s.payload, &batch); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.name+"/generic", func(b *testing.B) {
			b.SetBytes(int64(len(s.payload)))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := naiveValue(s.payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFeed measures a store, in blocks, from the bytes of an engine to the index of a router: decoded
// only, with the table, with the index after it, and compared with a generic decoder of maps which hashes
// nothing. Each store starts a sequence of new blocks; table and index are replaced after 512 stores.
func BenchmarkFeed(b *testing.B) {
	const blocks, size, feeds = 32, 16, 512
	var payloads [feeds][]byte
	for i := range payloads {
		payloads[i] = storeOf(uint64(i), 0, blocks, size, true)
	}
	per := func(b *testing.B) {
		b.ReportMetric(float64(b.N)*blocks/b.Elapsed().Seconds()/1e6, "Mblocks/s")
	}
	b.Run("decode", func(b *testing.B) {
		var d Decoder
		var batch Batch
		for i := 0; b.Loop(); i++ {
			_ = d.Decode(payloads[i%feeds], &batch)
		}
		per(b)
	})
	b.Run("decode+hash", func(b *testing.B) {
		var d Decoder
		var batch Batch
		h, _ := kv.NewHasher(size, kv.Salt{})
		chain := make([]kv.SeqHash, 0, blocks)
		for i := 0; b.Loop(); i++ {
			_ = d.Decode(payloads[i%feeds], &batch)
			chain = h.AppendSeqHashes(chain[:0], batch.Events[0].Tokens, nil)
		}
		per(b)
	})
	run := func(b *testing.B, begin func() func(ev kv.Event)) {
		var d Decoder
		var batch Batch
		var out []kv.Event
		var table *Table
		var apply func(ev kv.Event)
		for i := 0; b.Loop(); i++ {
			if i%feeds == 0 {
				b.StopTimer()
				table, apply = newTable(b, Config{BlockSize: size}), begin()
				b.StartTimer()
			}
			out = out[:0]
			_ = d.Decode(payloads[i%feeds], &batch)
			out = table.Apply(&batch, out)
			for _, ev := range out {
				apply(ev)
			}
		}
		per(b)
	}
	b.Run("decode+table", func(b *testing.B) { run(b, func() func(kv.Event) { return func(kv.Event) {} }) })
	b.Run("decode+table+index", func(b *testing.B) {
		run(b, func() func(kv.Event) {
			x, err := prefix.New(prefix.Config{})
			if err != nil {
				b.Fatal(err)
			}
			return func(ev kv.Event) { x.ApplyEvent(kv.Worker{ID: 1}, ev) }
		})
	})
	b.Run("generic map", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			_, _, _ = naiveValue(payloads[i%feeds])
		}
		per(b)
	})
}

// BenchmarkTableBytes reports the memory of a table per block.
func BenchmarkTableBytes(b *testing.B) {
	for _, c := range []struct {
		name      string
		page, our int
	}{{"16", 16, 16}, {"4 of 16", 16, 64}, {"16 of 1", 1, 16}} {
		b.Run(c.name, func(b *testing.B) {
			const n = 1 << 20
			for b.Loop() {
				table := newTable(b, Config{BlockSize: c.our, EngineBlockSize: c.page, MaxBlocks: 1 << 26})
				hash, pages := uint64(0), n*c.our/c.page
				e := Event{Kind: Stored, Group: -1, BlockSize: c.page, Hashes: make([]kv.EngineHash, 256), Tokens: make([]kv.Token, 256*c.page)}
				for range pages / 256 {
					e.Parent, e.HasParent = 0, false
					for i := range e.Hashes {
						hash++
						e.Hashes[i] = kv.EngineHash(hash * 0x9e3779b97f4a7c15)
					}
					for i := range e.Tokens {
						e.Tokens[i] = kv.Token(hash + uint64(i))
					}
					table.Apply(&Batch{Events: []Event{e}}, nil)
				}
				s := table.Stats()
				if s.Blocks[kv.TierDevice] != n {
					b.Fatalf("%+v", s)
				}
				b.ReportMetric(float64(s.Bytes)/n, "bytes/block")
			}
		})
	}
}

// BenchmarkDescribe measures the description of a cache of a million blocks, in sequences of 256.
func BenchmarkDescribe(b *testing.B) {
	const n = 1 << 20
	table := newTable(b, Config{BlockSize: 16})
	for i := range n / 256 {
		var d Decoder
		var batch Batch
		if err := d.Decode(storeOf(uint64(i), 0, 256, 16, false), &batch); err != nil {
			b.Fatal(err)
		}
		table.Apply(&batch, nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		table.Describe(nil)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/block")
}
