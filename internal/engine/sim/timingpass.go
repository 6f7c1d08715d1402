package sim

import "penstock/core/paged"

// Pass is the description of a batch for the timing model.
type Pass struct {
	// Prefill is the number of prompt tokens that the batch computes, without cached ones; Prompts is the
	// number of their sequences. A preempted sequence computes its earlier output again, which counts as
	// prompt.
	Prefill, Prompts int
	// Fetched is the number of tokens whose K and V are fetched from shared memory first.
	Fetched int
	// PrefillSquares is the sum over those sequences of the square of the tokens that the batch computes;
	// PrefillContext the sum of their product with the tokens before them.
	PrefillSquares, PrefillContext int64
	// Tokens is the number of sequences that get their next token: sequences in decode and sequences whose
	// prompt the batch completes.
	Tokens int
	// Context is the sum of their lengths.
	Context int
	// Running is the number of sequences in the batch plus the others that hold blocks.
	Running int
	// UsedBlocks of TotalBlocks are held by sequences.
	UsedBlocks, TotalBlocks int
	// Media is the number of media tokens whose placeholders the batch computes.
	Media int
}

// DescribePass returns the pass for plan, where stats are the scheduler's after Step and total is its number
// of blocks. The caller sets Media. It allocates nothing and costs O(1) per sequence in the batch.
func DescribePass(plan *paged.Step, stats paged.Stats, total int) Pass {
	p := Pass{Running: stats.Running, UsedBlocks: stats.UsedBlocks, TotalBlocks: total}
	for i := range plan.Work {
		w := &plan.Work[i]
		p.Fetched += w.Fetched
		if n := w.Prefill; n > 0 {
			p.Prefill += n
			p.Prompts++
			p.PrefillSquares += int64(n) * int64(n)
			p.PrefillContext += int64(n) * int64(w.Start)
		}
		if w.Sample {
			p.Tokens++
			p.Context += w.Start + len(w.Tokens)
		}
	}
	return p
}
