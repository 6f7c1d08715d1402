package sim

import (
	"testing"

	"penstock/core/kv"
	"penstock/core/paged"
)

// scheduled is a scheduler and helpers to drive it.
type scheduled struct {
	t    *testing.T
	s    *paged.Scheduler
	step paged.Step
	cfg  paged.Config
}

func newScheduled(t *testing.T, blocks int) *scheduled {
	t.Helper()
	cfg := paged.Config{Blocks: blocks, BlockSize: 4, MaxSeqs: 4, TokenBudget: 12, MaxContext: 64, MaxWaiting: 8}
	s, err := paged.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &scheduled{t: t, s: s, cfg: cfg}
}

func (d *scheduled) add(id paged.SeqID, n int, first kv.Token) {
	d.t.Helper()
	tokens := make([]kv.Token, n)
	for i := range tokens {
		tokens[i] = first + kv.Token(i)
	}
	if err := d.s.AddSequence(paged.Sequence{ID: id, Tokens: tokens, Prompt: n}); err != nil {
		d.t.Fatal(err)
	}
}

// pass plans a batch, compares its description with want, and computes it.
func (d *scheduled) pass(name string, want Pass) {
	d.t.Helper()
	d.s.Step(&d.step)
	want.TotalBlocks = d.cfg.Blocks
	if got := DescribePass(&d.step, d.s.Stats(), d.cfg.Blocks); got != want {
		d.t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
	}
	var sampled []paged.SampledToken
	for _, w := range d.step.Work {
		if w.Sample {
			sampled = append(sampled, paged.SampledToken{ID: w.ID, Token: 9})
		}
	}
	d.s.Commit(sampled)
}

func TestDescribe(t *testing.T) {
	d := newScheduled(t, 32)
	d.pass("idle", Pass{})
	d.add(1, 20, 100)
	d.pass("the first chunk", Pass{Prefill: 12, Prompts: 1, PrefillSquares: 144, Running: 1, UsedBlocks: 3})
	d.add(2, 10, 200)
	// 8 of the first complete it; 4 of the second.
	d.pass("two prompts", Pass{
		Prefill: 12, Prompts: 2, PrefillSquares: 64 + 16, PrefillContext: 8 * 12,
		Tokens: 1, Context: 20, Running: 2, UsedBlocks: 6,
	})
	// One token of the first, the last 6 of the second.
	d.pass("mixed", Pass{
		Prefill: 6, Prompts: 1, PrefillSquares: 36, PrefillContext: 6 * 4,
		Tokens: 2, Context: 21 + 10, Running: 2, UsedBlocks: 9,
	})
	d.pass("decode", Pass{Tokens: 2, Context: 22 + 11, Running: 2, UsedBlocks: 9})
	d.s.RemoveSequence(2)
	// All but the last token is in the cache; the last one still counts as prompt.
	d.add(3, 17, 100)
	d.pass("a hit", Pass{
		Prefill: 1, Prompts: 1, PrefillSquares: 1, PrefillContext: 16,
		Tokens: 2, Context: 23 + 17, Running: 2, UsedBlocks: 7,
	})
}

// TestDescribeRecompute checks that the output of a preempted sequence counts as prompt when it is computed
// again.
func TestDescribeRecompute(t *testing.T) {
	d := newScheduled(t, 4)
	d.add(1, 7, 100)
	d.add(2, 5, 200)
	d.pass("prompts", Pass{Prefill: 12, Prompts: 2, PrefillSquares: 49 + 25, Tokens: 2, Context: 12, Running: 2, UsedBlocks: 4})
	d.pass("decode", Pass{Tokens: 2, Context: 8 + 6, Running: 2, UsedBlocks: 4})
	d.pass("preemption", Pass{Tokens: 1, Context: 9, Running: 1, UsedBlocks: 3})
	d.s.RemoveSequence(1)
	// 7 tokens are known; their first block is cached.
	d.pass("again", Pass{Prefill: 3, Prompts: 1, PrefillSquares: 9, PrefillContext: 12, Tokens: 1, Context: 7, Running: 1, UsedBlocks: 2})
}

func TestDescribeDoesNotAllocate(t *testing.T) {
	d := newScheduled(t, 32)
	d.add(1, 20, 100)
	d.s.Step(&d.step)
	stats := d.s.Stats()
	if n := testing.AllocsPerRun(100, func() { DescribePass(&d.step, stats, 32) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
