package engineevents

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
)

func snapshotHeader(resume, records int) []byte {
	var e encoder
	e.array(7)
	e.uint(1)
	e.str("epoch-1")
	e.uint(2)
	e.uint(uint64(resume))
	e.uint(uint64(resume))
	e.str("barrier-9")
	e.uint(uint64(records))
	return e.b
}

func snapshotChunk(hashes ...[]kv.EngineHash) []byte {
	var e encoder
	e.array(len(hashes))
	for _, hs := range hashes {
		e.array(2)
		e.nil()
		e.hashes(hs)
	}
	return e.b
}

func message3(kind string, body []byte) [][]byte { return [][]byte{nil, []byte(kind), body} }

// TestTrim: what the engine does not have any more is removed, copies and joined blocks included, and
// nothing else.
func TestTrim(t *testing.T) {
	for seed := range uint64(40) {
		per := 1 + int(seed%3)
		g := engine{block: 2, ours: 2 * per, salts: []kv.Salt{{}}, negate: true, Rand: rand.New(rand.NewPCG(seed, 31)), hashes: map[string]kv.EngineHash{}}
		table := newTable(t, Config{BlockSize: g.ours, EngineBlockSize: g.block})
		f := follower{tierPrefixes: tierPrefixes{}, t: t}
		var dec Decoder
		var b Batch
		for range 20 {
			g.serve()
		}
		if err := dec.Decode(g.flush(0), &b); err != nil {
			t.Fatal(err)
		}
		f.apply(table.Apply(&b, nil))
		for range 10 { // no announcement
			g.evict()
		}
		var have [][]kv.EngineHash
		for _, c := range g.cached {
			have = append(have, []kv.EngineHash{c.hash})
		}
		var s Snapshot
		for i, frames := range [][][]byte{message3("header", snapshotHeader(1, len(have))), message3("chunk", snapshotChunk(have[:len(have)/2]...)), message3("chunk", snapshotChunk(have[len(have)/2:]...)), message3("end", nil)} {
			if done, err := s.AddMessage(frames); err != nil || done != (i == 3) {
				t.Fatalf("message %d: done is %v, error %v", i, done, err)
			}
		}
		if s.Header.Epoch != "epoch-1" || s.Header.Rank != 2 || s.Header.Resume != 1 || s.Header.BarrierID != "barrier-9" {
			t.Fatalf("the header is %+v", s.Header)
		}
		f.apply(table.TrimToSnapshot(&s, nil))
		if truth := g.truth(); !f.tierPrefixes.same(truth) {
			t.Fatalf("seed %d: told of\n%v, there is\n%v", seed, f.tierPrefixes, truth)
		}
		// From then on it follows again. It assumes one copy of each block.
		for range 30 {
			g.serve()
			g.evict()
			g.evict()
			if err := dec.Decode(g.flush(0), &b); err != nil {
				t.Fatal(err)
			}
			f.apply(table.Apply(&b, nil))
			truth := g.truth()
			for seq := range f.tierPrefixes[kv.TierDevice] {
				if !truth[kv.TierDevice][seq] {
					t.Fatalf("seed %d: block %x is told of, and is not there", seed, seq)
				}
			}
		}
	}
}

// TestSnapshotRefuses: a snapshot which is truncated, reordered or incomplete trims nothing.
func TestSnapshotRefuses(t *testing.T) {
	chunk := message3("chunk", snapshotChunk([]kv.EngineHash{1}))
	for name, messages := range map[string][][][]byte{
		"no header":     {chunk},
		"two headers":   {message3("header", snapshotHeader(1, 1)), message3("header", snapshotHeader(1, 1))},
		"short":         {message3("header", snapshotHeader(1, 2)), chunk, message3("end", nil)},
		"long":          {message3("header", snapshotHeader(1, 1)), chunk, chunk},
		"bytes behind":  {message3("header", snapshotHeader(1, 1)), message3("chunk", append(snapshotChunk([]kv.EngineHash{1}), 0))},
		"unknown":       {message3("hello", nil)},
		"other version": {message3("header", append([]byte{0x97, 2}, snapshotHeader(1, 1)[2:]...))},
		"few frames":    {{[]byte("end")}},
		"hollow":        {message3("header", []byte{0x97})},
		"refused":       {message3("error", []byte("busy"))},
	} {
		var s Snapshot
		var err error
		for _, m := range messages {
			if _, err = s.AddMessage(m); err != nil {
				break
			}
		}
		if err == nil || errors.Is(err, ErrSnapshotRefused) != (name == "refused") {
			t.Errorf("%s: %v", name, err)
		}
		table := newTable(t, Config{BlockSize: 2})
		table.Apply(&Batch{Events: []Event{newStore(0, 1)}}, nil)
		if got := table.TrimToSnapshot(&s, nil); got != nil {
			t.Errorf("%s: trims %v", name, got)
		}
	}
}

// FuzzSnapshot: no messages break it, and none makes more hashes than it has bytes.
func FuzzSnapshot(f *testing.F) {
	f.Add(snapshotHeader(1, 2), snapshotChunk([]kv.EngineHash{1, 2}, []kv.EngineHash{3}))
	f.Add(snapshotHeader(1, 1<<20), []byte{0xdd, 0, 0, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, header, chunk []byte) {
		var s Snapshot
		if _, err := s.AddMessage(message3("header", slices.Clone(header))); err != nil {
			return
		}
		if _, err := s.AddMessage(message3("chunk", chunk)); err != nil {
			return
		}
		if s.Len() > len(chunk) {
			t.Fatalf("%d bytes have %d hashes", len(chunk), s.Len())
		}
		_, _ = s.AddMessage(message3("end", nil))
	})
}
