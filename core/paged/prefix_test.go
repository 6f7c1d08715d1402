package paged

import (
	"testing"

	"penstock/core/kv"
)

// TestCachedPrefix: a look-up counts whole blocks without the last token, keeps namespaces apart, and does not
// change what the head of the queue waits for. That of a sequence which was added counts what it has generated too.
func TestCachedPrefix(t *testing.T) {
	s, err := New(Config{Blocks: 5, BlockSize: 4, MaxSeqs: 2, TokenBudget: 9, MaxContext: 24, MaxWaiting: 4})
	if err != nil {
		t.Fatal(err)
	}
	long := prompt(1, 17)
	lookUp := func(n int, salt string) int {
		return s.CachedPrefix(Sequence{Salt: kv.Salt{Namespace: salt}, Tokens: long[:n], Prompt: n})
	}
	var plan Step
	for _, q := range []Sequence{{ID: 1, Tokens: long[:12], Prompt: 12}, {ID: 2, Tokens: long, Prompt: 17}} {
		if err := s.AddSequence(q); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second one has no room before the first one's blocks are registered
		s.Step(&plan)
		if len(plan.Work) != 1 {
			t.Fatalf("%+v", plan.Work)
		}
		s.CachedPrefix(Sequence{Tokens: prompt(900, 9), Prompt: 9})
		s.Commit(nil)
	}
	for n, want := range map[int]int{0: 0, 1: 0, 4: 0, 5: 4, 12: 8, 13: 12, 17: 12} {
		if got := lookUp(n, ""); got != want {
			t.Errorf("of %d tokens %d are cached, want %d", n, got, want)
		}
		if got := lookUp(n, "another"); got != 0 {
			t.Errorf("in another namespace %d tokens are cached", got)
		}
	}
	if waiting, unknown := s.CachedTokens(2), s.CachedTokens(9); waiting != 12 || unknown != 0 {
		t.Errorf("%d tokens of the second sequence are cached, and %d of none", waiting, unknown)
	}
	s.Step(&plan)
	if len(plan.Work) != 1 || plan.Work[0].ID != 2 || plan.Work[0].Start != 12 {
		t.Errorf("the second sequence waits: %+v", plan.Work)
	}
	s.Commit([]SampledToken{{ID: 1, Token: 1}})
	if all, prompt := s.CachedTokens(1), lookUp(12, ""); all != 12 || prompt != 8 {
		t.Errorf("of the first sequence with its output %d tokens are cached, of its prompt alone %d", all, prompt)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
