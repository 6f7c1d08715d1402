// Package sim is an engine that computes nothing: its blocks, its schedule and its
// events are real ([core/paged]), its time is that of a model, and its text is a
// passage that anyone can read. In real time it serves like any other engine; a
// simulated cluster asks the same model in virtual time.
package sim

import (
	"time"

	"penstock/core/paged"
)

// Pass is a batch as the model of time sees it.
type Pass struct {
	// Prefill are the prompt tokens that the batch computes, those from the cache left
	// out; Prompts are the sequences that they belong to.
	Prefill, Prompts int
	// PrefillContext is, summed over those sequences, the product of the tokens that
	// the batch computes and those that were there before.
	PrefillContext int
	// Tokens are the sequences that the batch gives their next token: those in decode and
	// those whose prompt it completes.
	Tokens int
	// Context is the sum of their lengths.
	Context int
	// UsedBlocks of TotalBlocks are held by sequences.
	UsedBlocks, TotalBlocks int
	// Media are the tokens of the media objects whose placeholders the batch computes.
	Media int
}

// Describe returns the pass that plan is, of a scheduler with these figures.
func Describe(plan *paged.Step, stats paged.Stats, total int) Pass {
	panic("not built yet")
}

// Timing is the model of time: a value that can be copied. The same pass with the
// same number takes the same time on every machine.
type Timing struct{}

// Pass returns how long the engine takes for p, its number-th pass from 0.
func (t *Timing) Pass(p *Pass, number uint64) time.Duration {
	panic("not built yet")
}

// Transfer returns how long the K and V of so many tokens are on their way between
// two workers.
func (t *Timing) Transfer(tokens int) time.Duration {
	panic("not built yet")
}
