package route

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// mediaQuery is a request whose prompt of 40 blocks shows two objects, of 256 and 128 tokens.
func mediaQuery(id string) *Query {
	return &Query{
		Key: activeseq.AttemptKey{ID: id, Attempt: 1}, PromptTokens: 640,
		Media: []kv.Media{{Start: 16, End: 272}, {Start: 300, End: 428}},
	}
}

// TestHeldEmbeddings: the worker which holds what its encoder made of the request's media is preferred by the time of
// the encoding, in ms in mode Time and in blocks of prefill in mode KV, and nothing else changes.
func TestHeldEmbeddings(t *testing.T) {
	for _, mode := range []Mode{Time, KV} {
		active := mustTable(t, size)
		r := mustRouter(t, Config{Mode: mode}, active)
		if err := r.SetWorkers([]Target{
			{Worker: kv.Worker{ID: 1}, BlockSize: size, State: Ready, Blocks: 100}, {Worker: kv.Worker{ID: 2}, BlockSize: size, State: Ready, Blocks: 100},
		}); err != nil {
			t.Fatal(err)
		}
		plain, err := r.Explain(0, mediaQuery("a"))
		if err != nil {
			t.Fatal(err)
		}
		for objects, held := range map[uint64]int{0b01: 256, 0b10: 128, 0b11: 384, 0b100: 0} {
			q := mediaQuery("a")
			q.Held = []HeldMedia{{kv.Worker{ID: 2}, objects}}
			ex, err := r.Explain(0, q)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plain.Candidates[0].Cost, ex.Candidates[0].Cost); diff != "" {
				t.Errorf("%s: the cost of the other worker: %s", mode, diff)
			}
			rate := r.rates.WorkerOf(kv.Worker{ID: 2})
			saved := rate.EncodeMs(384) - rate.EncodeMs(384-held)
			blocks := saved / (size * rate.TokenMs())
			c, was := ex.Candidates[1], plain.Candidates[1]
			less := blocks
			if mode == Time {
				less = saved
			}
			if c.HeldTokens != held || c.EmbeddingAffinity != blocks || c.Affinity != blocks || math.Abs(was.Cost-c.Cost-less) > 1e-9 {
				t.Errorf("%s, objects %b: %+v, want %g less than %g", mode, objects, c, less, was.Cost)
			}
			if held > 0 && ex.Decision.Worker.ID != 2 {
				t.Errorf("%s, objects %b: %+v", mode, objects, ex.Decision)
			}
			// It is in nothing else.
			c.HeldTokens, c.EmbeddingAffinity, c.Affinity, c.Cost, c.Probability, c.Near, c.Time.Affinity = 0, 0, 0, was.Cost, was.Probability, was.Near, 0
			if diff := cmp.Diff(was, c); diff != "" {
				t.Errorf("%s, objects %b: -without +with\n%s", mode, objects, diff)
			}
		}
	}
}

// TestHeldEmbeddingsAreNoLoad: the reservation of a request is the same whether the worker holds the embeddings.
func TestHeldEmbeddingsAreNoLoad(t *testing.T) {
	place := func(held []HeldMedia) (activeseq.Load, any) {
		active := mustTable(t, size)
		r := mustRouter(t, Config{}, active)
		if err := r.SetWorkers([]Target{{Worker: kv.Worker{ID: 2}, BlockSize: size, State: Ready}}); err != nil {
			t.Fatal(err)
		}
		q := mediaQuery("a")
		q.Held = held
		d, err := r.Pick(0, q)
		if err != nil {
			t.Fatal(err)
		}
		d.Cost = 0
		p, _ := active.PlacementOf(q.Key)
		p.HeldMedia = 0 // only what the router learns from the request depends on it
		return active.LoadOf(kv.Worker{ID: 2}), []any{d, p, active.PrefillQueueOf(kv.Worker{ID: 2})}
	}
	load, rest := place(nil)
	heldLoad, heldRest := place([]HeldMedia{{kv.Worker{ID: 2}, 3}})
	if diff := cmp.Diff([]any{load, rest}, []any{heldLoad, heldRest}); diff != "" {
		t.Errorf("-without +with\n%s", diff)
	}
}

// TestHeldButReused: media which the worker need not encode, because their tokens are KV hits, count for nothing, and
// weight 0 is no preference.
func TestHeldButReused(t *testing.T) {
	for _, c := range []struct {
		weight float64
		reuse  int // blocks
		want   int // tokens
	}{{1, 0, 256}, {1, 9, 128}, {1, 17, 0}, {0, 0, 0}} {
		weights := DefaultAffinityWeights()
		weights.Embedding = c.weight
		r := mustRouter(t, Config{Affinity: &weights}, mustTable(t, size))
		if err := r.SetWorkers([]Target{{Worker: kv.Worker{ID: 2}, BlockSize: size, State: Ready}}); err != nil {
			t.Fatal(err)
		}
		q := mediaQuery("a")
		q.Held = []HeldMedia{{kv.Worker{ID: 2}, 1}}
		q.Overlaps = []kv.Overlap{{Worker: kv.Worker{ID: 2}, Blocks: [kv.Tiers]int{c.reuse}}}
		ex, err := r.Explain(0, q)
		if err != nil {
			t.Fatal(err)
		}
		if got := ex.Candidates[0]; got.HeldTokens != c.want || (got.EmbeddingAffinity > 0) != (c.want > 0) {
			t.Errorf("%+v: %d tokens, affinity %g", c, got.HeldTokens, got.EmbeddingAffinity)
		}
	}
}

// TestReuseBeforeHeldEmbeddings: a worker which reuses the tokens of media encodes as little as one which holds their
// embeddings, and computes less.
func TestReuseBeforeHeldEmbeddings(t *testing.T) {
	for _, mode := range []Mode{Time, KV} {
		r := mustRouter(t, Config{Mode: mode}, mustTable(t, size))
		if err := r.SetWorkers([]Target{
			{Worker: kv.Worker{ID: 1}, BlockSize: size, State: Ready, Blocks: 100}, {Worker: kv.Worker{ID: 2}, BlockSize: size, State: Ready, Blocks: 100},
		}); err != nil {
			t.Fatal(err)
		}
		q := mediaQuery("a")
		q.Held = []HeldMedia{{kv.Worker{ID: 1}, 3}}
		q.Overlaps = []kv.Overlap{{Worker: kv.Worker{ID: 2}, Blocks: [kv.Tiers]int{30}}}
		if d, err := r.Pick(0, q); err != nil || d.Worker.ID != 2 {
			t.Errorf("%s: %+v, %v", mode, d, err)
		}
	}
}

// TestLearningFromHeldEmbeddings: a prompt whose media need no encoding says nothing of how long encoding takes.
func TestLearningFromHeldEmbeddings(t *testing.T) {
	r := mustRouter(t, Config{}, mustTable(t, size))
	w := kv.Worker{ID: 2}
	if err := r.SetWorkers([]Target{{Worker: w, BlockSize: size, State: Ready}}); err != nil {
		t.Fatal(err)
	}
	before := r.rates.WorkerOf(w).EncodeMs(384)
	for i := range 50 {
		q := mediaQuery("a")
		q.Held = []HeldMedia{{w, 3}}
		now := kv.Mono(i+1) * kv.Mono(time.Second)
		if _, err := r.Pick(now, q); err != nil {
			t.Fatal(err)
		}
		r.RecordFirstToken(now.Add(toDuration(r.rates.WorkerOf(w).PrefillMs(640))), q.Key, UnknownCached)
		r.active.Free(q.Key)
	}
	if after := r.rates.WorkerOf(w).EncodeMs(384); after != before {
		t.Errorf("the encoding of 384 tokens took %g ms and takes %g now", before, after)
	}
}

// TestAddHolder: holders are in the order of the workers, each once, with a bit for each object.
func TestAddHolder(t *testing.T) {
	var held []HeldMedia
	for _, add := range []struct {
		id     kv.WorkerID
		object int
	}{{5, 0}, {2, 0}, {9, 1}, {2, 63}, {5, 1}, {3, 1}, {2, 0}} {
		held = AddHolder(held, kv.Worker{ID: add.id}, add.object)
	}
	want := []HeldMedia{{kv.Worker{ID: 2}, 1 | 1<<63}, {kv.Worker{ID: 3}, 2}, {kv.Worker{ID: 5}, 3}, {kv.Worker{ID: 9}, 2}}
	if !slices.Equal(held, want) {
		t.Errorf("%v, want %v", held, want)
	}
}
