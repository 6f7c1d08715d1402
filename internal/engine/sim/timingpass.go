package sim

import (
	"penstock/core/paged"
	"penstock/core/splitmix"
)

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
	// Running is the number of sequences in the batch plus the others that hold blocks, except sequences which wait
	// for their media.
	Running int
	// UsedBlocks of TotalBlocks are held by sequences, without blocks which are reserved for media.
	UsedBlocks, TotalBlocks int
	// EncodeMillis is the sum of Timing.EncodeMillis of the media objects that the pass encodes.
	EncodeMillis float64
}

// DescribePass returns the pass for plan, where stats are the scheduler's after Step and total is its number
// of blocks. The caller sets EncodeMillis. It allocates nothing and costs O(1) per sequence in the batch.
func DescribePass(plan *paged.Step, stats paged.Stats, total int) Pass {
	p := Pass{Running: stats.Running, UsedBlocks: stats.UsedBlocks - stats.ReservedBlocks, TotalBlocks: total}
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

// MaxJitter is the largest relative standard deviation that a Timing may have.
// (llm-d-inference-sim has the same bound, and the same limit to one draw.)
const MaxJitter = 0.3

// maxDeviation is the largest deviation of one pass, as a share of its mean.
const maxDeviation = 0.7

// jitterFactor returns the factor of a pass, of mean 1: a function of the seed and the pass's number alone,
// so that it is independent of earlier passes.
//
// The sum of twelve uniform numbers is close to a normal one (Irwin and Hall) and needs neither logarithm nor
// cosine, whose last bits differ between processors. It is symmetric, and so are the bounds, hence the mean
// is exactly 1. At MaxJitter the bounds are at 2.3 deviations and reduce the standard deviation by 2 %.
func (t *Timing) jitterFactor(number uint64) float64 {
	if t.Jitter == 0 {
		return 1
	}
	off := float64(t.Jitter * normalDraw(t.Seed, number))
	return 1 + max(-maxDeviation, min(maxDeviation, off))
}

// normalDraw returns a draw of mean 0 and standard deviation 1.
func normalDraw(seed, number uint64) float64 {
	key := splitmix.Mix(splitmix.Mix(seed+splitmix.Step) + number*splitmix.Step)
	sum := 0
	for i := range uint64(3) {
		for r := splitmix.Mix(key + (i+1)*splitmix.Step); r != 0; r >>= 16 {
			sum += int(r & 0xffff)
		}
	}
	// Each of the twelve is uniform over 0..65535: mean 65535/2, variance 65536²/12.
	return float64(sum-6*65535) / 65536
}
