package prefix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
)

// fill returns an index in which every worker holds a shared system prompt and conversations of its own.
func fill(t testing.TB, workers, shared, conversations, depth int) (*Index, [][]kv.SeqHash) {
	t.Helper()
	x := mustNew(t, Config{})
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []kv.BlockHash {
		out := make([]kv.BlockHash, n)
		for i := range out {
			out[i] = kv.BlockHash(rng.Uint64())
		}
		return out
	}
	system := random(shared)
	var chains [][]kv.SeqHash
	for w := range workers {
		for range conversations {
			blocks := append(append([]kv.BlockHash(nil), system...), random(depth)...)
			x.ApplyEvent(kv.Worker{ID: kv.WorkerID(w + 1)}, kv.Event{Kind: kv.Stored, Blocks: blocks})
			var c []kv.SeqHash
			var seq kv.SeqHash
			for i, b := range blocks {
				seq = kv.ExtendSeq(seq, uint32(i), b)
				c = append(c, seq)
			}
			chains = append(chains, c)
		}
	}
	return x, chains
}

// TestTokensFindTheirOwn: the same tokens with another adapter, in another namespace or with other media are
// a different prompt, and match nothing of this one.
func TestTokensFindTheirOwn(t *testing.T) {
	tokens := make([]kv.Token, 10*4+3)
	for i := range tokens {
		tokens[i] = kv.Token(i)
	}
	image := func(hash uint64) []kv.Media { return []kv.Media{{Hash: hash, Start: 17, End: 18}} } // in block 4
	prompts := []struct {
		salt  kv.Salt
		media []kv.Media
	}{
		{},
		{salt: kv.Salt{LoRA: "a"}},
		{salt: kv.Salt{LoRA: "b"}},
		{salt: kv.Salt{Namespace: "a"}},
		{salt: kv.Salt{LoRA: "a", Namespace: "a"}},
		{media: image(1)},
		{media: image(2)},
	}
	x := mustNew(t, Config{})
	var chains [][]kv.SeqHash
	for i, p := range prompts {
		h, err := kv.NewHasher(4, p.salt)
		if err != nil {
			t.Fatal(err)
		}
		x.ApplyEvent(kv.Worker{ID: kv.WorkerID(i + 1)}, kv.Event{Kind: kv.Stored, Blocks: h.AppendBlockHashes(nil, tokens, p.media)})
		chains = append(chains, h.AppendSeqHashes(nil, tokens, p.media))
	}
	for i, c := range chains {
		for _, o := range matched(x, c, nil) {
			want := 0
			switch j := int(o.Worker.ID) - 1; {
			case j == i:
				want = 10
			case prompts[i].salt == prompts[j].salt: // equal up to the image
				want = 4
			}
			if o.Blocks[kv.TierDevice] != want {
				t.Errorf("prompt %+v: worker of %+v has %d blocks of it, want %d", prompts[i], prompts[o.Worker.ID-1], o.Blocks[kv.TierDevice], want)
			}
		}
		if n := len(matched(x, c, nil)); prompts[i].salt == (kv.Salt{}) && n != 3 || prompts[i].salt != (kv.Salt{}) && n != 1 {
			t.Errorf("prompt %+v: %d workers have any of it", prompts[i], n)
		}
	}
}

// TestMatchAllocatesNothing: a reused Match does not allocate, whatever it finds.
func TestMatchAllocatesNothing(t *testing.T) {
	label := kv.MoELabel{Has: kv.HasExpert, Layer: 1, Expert: 2}
	for _, c := range []struct {
		name string
		more func(x *Index, blocks []kv.BlockHash)
		moe  *kv.MoEQuery
	}{
		{"device", func(*Index, []kv.BlockHash) {}, nil},
		{"tiers", func(x *Index, blocks []kv.BlockHash) {
			x.ApplyEvent(kv.Worker{ID: 3}, kv.Event{Kind: kv.Stored, Tier: kv.TierDisk, Blocks: blocks})
		}, nil},
		{"pools", func(x *Index, blocks []kv.BlockHash) {
			x.SetAccess(1, []kv.Worker{{ID: 5}, {ID: 60}})
			x.SetAccess(2, []kv.Worker{{ID: 60}, {ID: 64}})
			x.AddToPool(1, chainOf(blocks), nil)
			x.AddToPool(2, chainOf(blocks)[10:], nil)
		}, nil},
		{"labels", func(x *Index, blocks []kv.BlockHash) {
			x.ApplyEvent(kv.Worker{ID: 3}, kv.Event{Kind: kv.Stored, Blocks: blocks, Labels: slices.Repeat([]kv.MoELabel{label}, len(blocks))})
		}, &kv.MoEQuery{Layer: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, chains := fill(t, 64, 20, 4, 100)
			c.more(x, grove().blocks[0])
			chains = append(chains, grove().chains[0])
			var m Match
			var dst []kv.Overlap
			i := 0
			ask := func() {
				x.Match(&m, chains[i%len(chains)], c.moe)
				dst = m.AppendOverlaps(dst[:0])
				for tier := range kv.Tier(kv.Tiers) {
					for _, run := range m.DepthRuns(tier) {
						for range run.Workers.All() {
						}
					}
				}
				i++
			}
			for range chains {
				ask()
			}
			if allocs := testing.AllocsPerRun(len(chains), ask); allocs != 0 {
				t.Errorf("%v allocations per match, want 0", allocs)
			}
		})
	}
}

func TestMatchAppends(t *testing.T) {
	x := mustNew(t, Config{})
	x.ApplyEvent(kv.Worker{ID: 3}, stored("", "a/b", kv.TierDevice))
	x.ApplyEvent(kv.Worker{ID: 1}, stored("", "a", kv.TierDevice))
	first := kv.Overlap{Worker: kv.Worker{ID: 7}}
	var m Match
	x.Match(&m, chain("a/b"), nil)
	got := m.AppendOverlaps([]kv.Overlap{first})
	if len(got) != 3 || got[0] != first || got[1].Worker.ID != 1 || got[2].Worker.ID != 3 || got[2].Depth() != 2 {
		t.Errorf("got %v", got)
	}
	x.Match(&m, nil, nil)
	if got := m.AppendOverlaps(got[:1]); len(got) != 1 {
		t.Errorf("an empty chain matched: %v", got)
	}
}

func TestApplyIgnoresWhatItDoesNotKnow(t *testing.T) {
	x := mustNew(t, Config{})
	x.ApplyEvent(kv.Worker{ID: 1}, kv.Event{Kind: 9, Blocks: blocks("a")})
	x.ApplyEvent(kv.Worker{ID: 1}, kv.Event{Kind: kv.Stored, Tier: kv.Tiers, Blocks: blocks("a")})
	if s := x.Stats(); s != (Stats{}) {
		t.Errorf("got %+v, want nothing", s)
	}
}

// TestAnyHash: an engine may give a first block any hash, including the value which marks an empty slot of a
// table.
func TestAnyHash(t *testing.T) {
	x := mustNew(t, Config{})
	for i := range 3 {
		x.ApplyEvent(kv.Worker{ID: kv.WorkerID(i + 1)}, kv.Event{Kind: kv.Stored, Blocks: []kv.BlockHash{kv.BlockHash(i)}})
	}
	for i := range 3 {
		got := matched(x, []kv.SeqHash{kv.SeqHash(i)}, nil)
		if len(got) != 1 || got[0].Worker.ID != kv.WorkerID(i+1) {
			t.Errorf("block %d: %v", i, got)
		}
	}
	x.DropWorker(kv.Worker{ID: 1})
	if got := matched(x, []kv.SeqHash{0}, nil); len(got) != 0 {
		t.Errorf("block 0 after its worker left: %v", got)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	if _, err := New(Config{MaxBlocks: -1}); err == nil {
		t.Error("a negative bound was accepted")
	}
}

// TestNumbersAreReused: workers which are added and removed do not widen the index.
func TestNumbersAreReused(t *testing.T) {
	x := mustNew(t, Config{})
	for i := range 1000 {
		w := kv.Worker{ID: kv.WorkerID(i + 1)}
		x.ApplyEvent(w, stored("", "a/b", kv.TierDevice))
		x.DropWorker(w)
	}
	if len(x.workers) > 1 {
		t.Errorf("%d numbers were given out, want 1", len(x.workers))
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, shared := range []int{0, 20, 500} {
		b.Run(fmt.Sprintf("workers=64/shared=%d/own=100", shared), func(b *testing.B) {
			x, chains := fill(b, 64, shared, 4, 100)
			var m Match
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x.Match(&m, chains[i%len(chains)], nil)
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	x := mustNew(b, Config{})
	rng := rand.New(rand.NewPCG(1, 2))
	blocks := make([]kv.BlockHash, 64)
	seqs := make([]kv.SeqHash, 64)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		w := kv.Worker{ID: kv.WorkerID(i%64 + 1)}
		var seq kv.SeqHash
		for j := range blocks {
			blocks[j] = kv.BlockHash(rng.Uint64())
			seq = kv.ExtendSeq(seq, uint32(j), blocks[j])
			seqs[j] = seq
		}
		x.ApplyEvent(w, kv.Event{Kind: kv.Stored, Blocks: blocks})
		x.ApplyEvent(w, kv.Event{Kind: kv.Removed, Seqs: seqs})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/128, "ns/block")
}
