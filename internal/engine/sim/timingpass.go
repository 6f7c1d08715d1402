package sim

import "penstock/core/paged"

// Pass is a batch as the model of time sees it.
type Pass struct {
	// Prefill are the prompt tokens that the batch computes, those from the cache left
	// out; Prompts are the sequences that they belong to. A preempted sequence computes
	// its output so far again: that is prompt by then.
	Prefill, Prompts int
	// Fetched are the tokens whose K and V are fetched from elsewhere before that.
	Fetched int
	// PrefillSquares is, summed over those sequences, the square of the tokens that
	// the batch computes; PrefillContext their product with those there before.
	PrefillSquares, PrefillContext int64
	// Tokens are the sequences that the batch gives their next token: those in decode and
	// those whose prompt it completes.
	Tokens int
	// Context is the sum of their lengths.
	Context int
	// Running are the sequences in the batch and those that hold blocks beside it.
	Running int
	// UsedBlocks of TotalBlocks are held by sequences.
	UsedBlocks, TotalBlocks int
	// Media are the tokens of the media objects whose placeholders the batch computes.
	Media int
}

// Describe returns the pass that plan is, of a scheduler with these figures after
// Step and total blocks. It leaves Media to a caller that knows them. It allocates
// nothing and costs O(1) per sequence in the batch.
func Describe(plan *paged.Step, stats paged.Stats, total int) Pass {
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
