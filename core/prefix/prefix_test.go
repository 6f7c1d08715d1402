package prefix

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"penstock/core/kv"
)

// fill makes an index in which every worker holds a shared system prompt and
// conversations of its own.
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
			x.Apply(kv.Worker{ID: kv.WorkerID(w + 1)}, kv.Event{Kind: kv.Stored, Blocks: blocks})
			var c []kv.SeqHash
			var seq kv.SeqHash
			for i, b := range blocks {
				seq = kv.Extend(seq, uint32(i), b)
				c = append(c, seq)
			}
			chains = append(chains, c)
		}
	}
	return x, chains
}

func TestMatchAllocatesNothing(t *testing.T) {
	x, chains := fill(t, 64, 20, 4, 100)
	var m Match
	var dst []kv.Overlap
	i := 0
	if allocs := testing.AllocsPerRun(2*len(chains), func() {
		x.Match(&m, chains[i%len(chains)], nil)
		dst = m.AppendOverlaps(dst[:0])
		m.Runs(kv.TierDevice)
		i++
	}); allocs != 0 {
		t.Errorf("%v allocations per match, want 0", allocs)
	}
}

func TestMatchAppends(t *testing.T) {
	x := mustNew(t, Config{})
	x.Apply(kv.Worker{ID: 3}, stored("", "a/b", kv.TierDevice))
	x.Apply(kv.Worker{ID: 1}, stored("", "a", kv.TierDevice))
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
	x.Apply(kv.Worker{ID: 1}, kv.Event{Kind: 9, Blocks: blocks("a")})
	x.Apply(kv.Worker{ID: 1}, kv.Event{Kind: kv.Stored, Tier: kv.Tiers, Blocks: blocks("a")})
	if s := x.Stats(); s != (Stats{}) {
		t.Errorf("got %+v, want nothing", s)
	}
}

func TestValidate(t *testing.T) {
	if _, err := New(Config{MaxBlocks: -1}); err == nil {
		t.Error("a negative bound was accepted")
	}
}

// TestBytesEstimate compares Stats.Bytes with what the heap says, for blocks
// with one holder and with many.
func TestBytesEstimate(t *testing.T) {
	for _, c := range []struct{ workers, shared, conversations, depth int }{
		{4, 1, 100, 400},
		{64, 4000, 1, 1},
	} {
		before := heap()
		x, _ := fill(t, c.workers, c.shared, c.conversations, c.depth)
		// The chains are garbage by now, and do not count.
		real := int64(heap() - before)
		est := int64(x.Stats().Bytes)
		if est < real/2 || est > real*2 {
			t.Errorf("%+v: estimated %d bytes, the heap grew by %d", c, est, real)
		}
		runtime.KeepAlive(x)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemoryIsReclaimed says that churn leaves nothing behind: every store is
// followed by the removal of what was stored long before.
func TestMemoryIsReclaimed(t *testing.T) {
	x := mustNew(t, Config{})
	const window = 1000
	w := kv.Worker{ID: 1}
	var name [8]byte
	at := func(i int) kv.BlockHash {
		binary.LittleEndian.PutUint64(name[:], uint64(i))
		return block(string(name[:]))
	}
	for i := range 50 * window {
		x.Apply(w, kv.Event{Kind: kv.Stored, Blocks: []kv.BlockHash{at(i)}})
		if i >= window {
			x.Apply(w, kv.Event{Kind: kv.Removed, Seqs: []kv.SeqHash{kv.SeqHash(at(i - window))}})
		}
	}
	if s := x.Stats(); s.Blocks != window || s.Entries != window {
		t.Errorf("%d blocks and %d entries are left, want %d", s.Blocks, s.Entries, window)
	}
	x.Drop(w)
	if s := x.Stats(); s.Blocks != 0 || s.Entries != 0 || s.Bytes != 0 {
		t.Errorf("after drop: %+v", s)
	}
}

// TestNumbersAreReused says that workers that come and go do not widen the index.
func TestNumbersAreReused(t *testing.T) {
	x := mustNew(t, Config{})
	for i := range 1000 {
		w := kv.Worker{ID: kv.WorkerID(i + 1)}
		x.Apply(w, stored("", "a/b", kv.TierDevice))
		x.Drop(w)
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
			seq = kv.Extend(seq, uint32(j), blocks[j])
			seqs[j] = seq
		}
		x.Apply(w, kv.Event{Kind: kv.Stored, Blocks: blocks})
		x.Apply(w, kv.Event{Kind: kv.Removed, Seqs: seqs})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/128, "ns/block")
}
