package embindex

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

// naive is the simplest index: for each worker the keys, the oldest first.
type naive struct {
	most    int
	held    map[kv.Worker][]kv.Digest
	hidden  map[kv.Worker]bool
	dropped uint64
}

func (n *naive) count() (sum int) {
	for _, keys := range n.held {
		sum += len(keys)
	}
	return sum
}

func (n *naive) add(w kv.Worker, key kv.Digest) {
	if slices.Contains(n.held[w], key) {
		return
	}
	if n.count() == n.most {
		var largest kv.Worker
		for of, keys := range n.held {
			if have := len(n.held[largest]); len(keys) > have || len(keys) == have && of.Compare(largest) < 0 {
				largest = of
			}
		}
		n.held[largest] = n.held[largest][1:]
		n.dropped++
	}
	n.held[w] = append(n.held[w], key)
}

func (n *naive) holders(key kv.Digest) (out []kv.Worker) {
	for w, keys := range n.held {
		if slices.Contains(keys, key) && !n.hidden[w] {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, kv.Worker.Compare)
	return out
}

func digest(n int) (d kv.Digest) {
	binary.LittleEndian.PutUint64(d[8:], uint64(n)+1)
	return d
}

func TestIndexAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 30).Draw(t, "most")
		x, err := New(Config{MaxHoldings: most})
		if err != nil {
			t.Fatal(err)
		}
		n := &naive{most: most, held: map[kv.Worker][]kv.Digest{}, hidden: map[kv.Worker]bool{}}
		worker := rapid.Map(rapid.IntRange(1, 5), func(i int) kv.Worker { return kv.Worker{ID: kv.WorkerID(i), Rank: uint32(i % 2)} })
		key := rapid.Map(rapid.IntRange(0, 9), digest)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				w, k := worker.Draw(t, "worker"), key.Draw(t, "key")
				x.Add(w, k)
				n.add(w, k)
			},
			"remove": func(t *rapid.T) {
				w, k := worker.Draw(t, "worker"), key.Draw(t, "key")
				x.Remove(w, k)
				n.held[w] = slices.DeleteFunc(n.held[w], func(o kv.Digest) bool { return o == k })
			},
			"hide": func(t *rapid.T) {
				w := worker.Draw(t, "worker")
				x.HideWorker(w)
				n.hidden[w] = true
			},
			"show": func(t *rapid.T) {
				w := worker.Draw(t, "worker")
				x.ShowWorker(w)
				delete(n.hidden, w)
			},
			"clear": func(t *rapid.T) {
				w := worker.Draw(t, "worker")
				x.ClearWorker(w)
				delete(n.held, w)
			},
			"drop": func(t *rapid.T) {
				w := worker.Draw(t, "worker")
				x.DropWorker(w)
				delete(n.held, w)
				delete(n.hidden, w)
			},
			"": func(t *rapid.T) {
				if err := x.Check(); err != nil {
					t.Fatal(err)
				}
				for i := range 10 {
					k := digest(i)
					if diff := cmp.Diff(n.holders(k), x.AppendHolders(nil, &k), cmpopts.EquateEmpty()); diff != "" {
						t.Fatalf("holders of %d: -want +got\n%s", i, diff)
					}
				}
				for w, keys := range n.held {
					if x.HeldBy(w) != len(keys) {
						t.Fatalf("worker %v holds %d, want %d", w, x.HeldBy(w), len(keys))
					}
				}
				if s := x.Stats(); s.Holdings != n.count() || s.Displaced != n.dropped {
					t.Fatalf("%+v, want %d holdings and %d displaced", s, n.count(), n.dropped)
				}
			},
		})
	})
}

// TestMemory: a full index reuses what it has.
func TestMemory(t *testing.T) {
	x, err := New(Config{MaxHoldings: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		x.Add(kv.Worker{ID: kv.WorkerID(1 + i%7)}, digest(i))
		if i%1000 == 0 {
			x.DropWorker(kv.Worker{ID: 3})
		}
	}
	if len(x.holdings) > 100 || len(x.workers) > 7 || len(x.byKey) > 100 {
		t.Errorf("%d holdings, %d workers, %d keys", len(x.holdings), len(x.workers), len(x.byKey))
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	x, _ := New(Config{})
	k := digest(1)
	for i := range 8 {
		x.Add(kv.Worker{ID: kv.WorkerID(i + 1)}, k)
	}
	dst := make([]kv.Worker, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		dst = x.AppendHolders(dst[:0], &k)
		unknown := digest(2)
		dst = x.AppendHolders(dst, &unknown)
	}); n != 0 || len(dst) != 8 {
		t.Errorf("%v allocations, %d holders", n, len(dst))
	}
}

// BenchmarkAppendHolders looks up entries of a full index, where a quarter of the keys have no holder. Beside it is the
// bare look-up in a map of the same keys.
func BenchmarkAppendHolders(b *testing.B) {
	const keys, workers = 1 << 16, 64
	x, _ := New(Config{})
	bare := map[kv.Digest]int32{}
	for i := range keys * 3 / 4 {
		bare[digest(i)] = int32(i)
		for j := range 4 {
			x.Add(kv.Worker{ID: kv.WorkerID(1 + (i*7+j*13)%workers)}, digest(i))
		}
	}
	b.Run("index", func(b *testing.B) {
		var dst []kv.Worker
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			k := digest(i * 2654435761 % keys)
			dst = x.AppendHolders(dst[:0], &k)
		}
	})
	b.Run("bare map", func(b *testing.B) {
		sum := int32(0)
		for i := 0; b.Loop(); i++ {
			sum += bare[digest(i*2654435761%keys)]
		}
		_ = sum
	})
}
