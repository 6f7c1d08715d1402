package paged

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// witness keeps what it was told of each registered block, and checks it.
type witness struct {
	s      *Scheduler
	blocks map[int32]FullBlock
	before map[int32]int32
	told   int
	err    error
}

func (w *witness) BlockRegistered(b, parent int32, c FullBlock) {
	w.told++
	if parent == NoParent {
		if c.Index != 0 || c.Parent != 0 {
			w.err = fmt.Errorf("block %d of %+v has no parent", b, c)
		}
	} else if p := w.blocks[parent]; p.Name != c.Parent || p.Index+1 != c.Index || p.Salt != c.Salt || !w.s.IsRegistered(parent, c.Parent) {
		w.err = fmt.Errorf("the parent of %+v is %+v", c, p)
	}
	if !w.s.IsRegistered(b, c.Name) || w.s.IsRegistered(b, c.Name+1) || w.s.IsRegistered(-1, c.Name) {
		w.err = fmt.Errorf("block %d is not registered as %+v", b, c)
	}
	w.blocks[b], w.before[b] = c, parent
}

// sequence returns what the witness was told of the prefix which ends with b.
func (w *witness) sequence(b int32) (all []FullBlock) {
	for ; b != NoParent; b = w.before[b] {
		all = append(all, w.blocks[b])
	}
	slices.Reverse(all)
	return all
}

// TestObserver: the observer is told of each registered block, as AppendFullBlocks describes it. A block which was evicted is not registered.
func TestObserver(t *testing.T) {
	w := &witness{blocks: map[int32]FullBlock{}, before: map[int32]int32{}}
	s, err := New(Config{Blocks: 12, BlockSize: 4, MaxSeqs: 4, TokenBudget: 16, MaxContext: 40, MaxWaiting: 8, Observer: w})
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	rng := rand.New(rand.NewPCG(1, 1))
	var step Step
	for id := range SeqID(60) {
		seq := Sequence{ID: id, Salt: kv.Salt{Namespace: []string{"", "a"}[rng.IntN(2)]}}
		for i := range 5 + rng.IntN(30) {
			seq.Tokens = append(seq.Tokens, kv.Token(i+rng.IntN(20)/19))
		}
		seq.Prompt = len(seq.Tokens)
		if rng.IntN(2) > 0 { // in another order than their places
			seq.Media = []kv.Media{{Start: 6, End: 9, Hash: 2, Digest: kv.Digest{2}}, {Start: 2, End: 5, Hash: 1, Digest: kv.Digest{1}}}
			if len(seq.Tokens) < 9 {
				seq.Media = seq.Media[1:]
			}
		}
		if err := s.AddSequence(seq); err != nil {
			t.Fatal(err)
		}
		var last []int32
		for {
			s.Step(&step)
			if len(step.Work) == 0 {
				t.Fatal("no work")
			}
			done := step.Work[0].Sample
			s.Commit(nil)
			if done {
				break
			}
		}
		_, table := s.SequenceBlocks(id)
		last = slices.Clone(table[:len(seq.Tokens)/4])
		want, err := AppendFullBlocks(nil, &seq, 4)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range want {
			var shown []kv.Media
			for _, m := range slices.Backward(seq.Media) {
				if m.Start < 4*i+4 && m.End > 4*i {
					shown = append(shown, m)
				}
			}
			if !slices.Equal(b.Media, shown) || !slices.Equal(b.Tokens, seq.Tokens[4*i:4*i+4]) || b.Salt != seq.Salt {
				t.Fatalf("block %d of %+v is %+v", i, seq, b)
			}
		}
		if len(want) > 0 {
			if diff := cmp.Diff(want, w.sequence(last[len(want)-1])); diff != "" {
				t.Fatalf("sequence %d (-its blocks +told):\n%s", id, diff)
			}
		}
		s.RemoveSequence(id)
		if w.err != nil {
			t.Fatal(w.err)
		}
	}
	registered := 0
	for b, c := range w.blocks {
		if _, ok := s.pool.index[c.Name]; ok != s.IsRegistered(b, c.Name) && s.pool.index[c.Name] == b {
			t.Errorf("block %d: in the index: %v", b, ok)
		}
		if s.IsRegistered(b, c.Name) {
			registered++
		}
	}
	if registered != len(s.pool.index) || w.told < 2*registered || s.Stats().Evictions == 0 {
		t.Errorf("%d blocks are registered, %d are cached, %d were told", registered, len(s.pool.index), w.told)
	}
}
