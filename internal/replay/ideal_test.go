package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"penstock/core/kv"
)

// naiveIdeal computes cached tokens with prefixes spelled out in full: a list from
// newest to oldest; 0 is no bound.
func naiveIdeal(all []Request, size, capacity int) (cached, input int) {
	var list []string
	for i := range all {
		tokens := AppendTokens(nil, &all[i], Vocabulary{})
		input += len(tokens)
		var prefixes []string
		for n := size; n <= len(tokens); n += size {
			prefixes = append(prefixes, fmt.Sprint(tokens[:n]))
		}
		for n, p := range prefixes {
			if (n+1)*size >= len(tokens) || !slices.Contains(list, p) {
				break
			}
			cached += size
		}
		for _, p := range slices.Backward(prefixes) {
			if at := slices.Index(list, p); at >= 0 {
				list = slices.Delete(list, at, at+1)
			}
			list = slices.Insert(list, 0, p)
			if capacity > 0 && len(list) > capacity {
				list = list[:capacity]
			}
		}
	}
	return cached, input
}

// branching makes up prompts that share prefixes in many ways.
func branching(n int, seed uint64) []Request {
	g := newRandomSource(seed, 1)
	var out []Request
	for i := range n {
		r := Request{Index: i, BlockTokens: 4}
		for range 1 + g.Below(6) {
			r.Blocks = append(r.Blocks, int64(g.Below(3)))
		}
		r.Input = max(4*len(r.Blocks)-g.Below(4), 1)
		out = append(out, r)
	}
	return out
}

func TestIdealsAreThoseOfANaiveCache(t *testing.T) {
	for seed := range uint64(8) {
		all := branching(120, seed)
		for _, size := range []int{2, 3, 4, 8} {
			workers := []int{1, 2, 3, 7, 20, 100_000}
			got, err := Ideals(context.Background(), &rows{all: all}, IdealConfig{BlockSize: size, Workers: workers, Blocks: 3})
			if err != nil {
				t.Fatal(err)
			}
			infinite, input := naiveIdeal(all, size, 0)
			for i, n := range workers {
				same, _ := naiveIdeal(all, size, 3*n)
				want := Ideal{
					Workers: n, BlockSize: size, Blocks: 3,
					Infinite:     Share{CachedShare: float64(infinite) / float64(input)},
					SameCapacity: Share{CachedShare: float64(same) / float64(input)},
				}
				if got[i] != want {
					t.Errorf("seed %d, blocks of %d: %+v, want %+v", seed, size, got[i], want)
				}
			}
		}
	}
}

// TestLRUAgainstASlice drives the structure itself, evictions and all, with hashes
// that collide in its table.
func TestLRUAgainstASlice(t *testing.T) {
	g := newRandomSource(2, 2)
	for _, capacity := range []int{1, 2, 10, 700} {
		l := newLRUCache(capacity, 1<<20)
		var list []kv.SeqHash
		for range 20_000 {
			h := kv.SeqHash(g.Below(60))<<10 | kv.SeqHash(g.Below(30)) | 1<<63
			held := slices.Contains(list, h)
			if (l.countHits([]kv.SeqHash{h}) == 1) != held {
				t.Fatalf("capacity %d: %x is held: %v", capacity, h, held)
			}
			l.addPrompt([]kv.SeqHash{h})
			if at := slices.Index(list, h); at >= 0 {
				list = slices.Delete(list, at, at+1)
			}
			if list = slices.Insert(list, 0, h); len(list) > capacity {
				list = list[:capacity]
			}
			if l.blockCount() != len(list) {
				t.Fatalf("capacity %d: %d blocks, want %d", capacity, l.blockCount(), len(list))
			}
		}
	}
}

// TestEstimatesAreNear: with a tenth of the blocks kept track of, the shares are
// near those of all.
func TestEstimatesAreNear(t *testing.T) {
	w, err := ParseGenerator("chat:requests=4000", 3)
	if err != nil {
		t.Fatal(err)
	}
	ideals := func(most int) []Ideal {
		s, err := w.Open()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Ideals(context.Background(), s, IdealConfig{BlockSize: 16, Workers: []int{1, 8}, Blocks: 3000, MaxBlocks: most})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	exact, near := ideals(0), ideals(8000)
	for i := range exact {
		a, b := exact[i], near[i]
		if a.Infinite.Estimated || a.SameCapacity.Estimated || !b.Infinite.Estimated {
			t.Errorf("%+v and %+v", a, b)
		}
		if math.Abs(a.Infinite.CachedShare-b.Infinite.CachedShare) > 0.01 || math.Abs(a.SameCapacity.CachedShare-b.SameCapacity.CachedShare) > 0.01 {
			t.Errorf("estimate %+v, exact %+v", b, a)
		}
	}
	if near[0].SameCapacity.Estimated || near[0].SameCapacity != exact[0].SameCapacity {
		t.Errorf("3000 blocks fit 8000, and yet %+v is not %+v", near[0], exact[0])
	}
	if !near[1].SameCapacity.Estimated || exact[0].SameCapacity.CachedShare >= exact[1].SameCapacity.CachedShare {
		t.Errorf("%+v, %+v", exact, near)
	}
}

func TestIdealsEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Ideals(ctx, &rows{}, IdealConfig{BlockSize: 2, Blocks: 1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	want := errors.New("line 2: broken")
	if _, err := Ideals(context.Background(), broken{want}, IdealConfig{BlockSize: 2, Blocks: 1}); !errors.Is(err, want) {
		t.Error(err)
	}
	for _, cfg := range []IdealConfig{{BlockSize: 0, Blocks: 1}, {BlockSize: 2}, {BlockSize: 2, Blocks: 1, Workers: []int{0}}} {
		if _, err := Ideals(context.Background(), &rows{}, cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

func TestIdealOfNothing(t *testing.T) {
	got, err := Ideals(context.Background(), &rows{}, IdealConfig{BlockSize: 16, Blocks: 1, Workers: []int{2}})
	if err != nil || got[0] != (Ideal{Workers: 2, BlockSize: 16, Blocks: 1}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func BenchmarkIdeals(b *testing.B) {
	w, err := ParseGenerator("chat:requests=3000", 1)
	if err != nil {
		b.Fatal(err)
	}
	blocks := 0
	for b.Loop() {
		s, _ := w.Open()
		if _, err := Ideals(context.Background(), s, IdealConfig{BlockSize: 16, Workers: []int{1, 8}, Blocks: 4096}); err != nil {
			b.Fatal(err)
		}
		s, _ = w.Open()
		var r Request
		for s.Next(&r) == nil {
			blocks += r.Input / 16
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
}
