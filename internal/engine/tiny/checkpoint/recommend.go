package checkpoint

import (
	"slices"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// EndOfSequence returns the tokens that end an answer, from generation_config.json, which includes the end of
// a turn, else from config.json. It omits ids outside the vocabulary, which has the given number of entries.
func EndOfSequence(f *Facts, g *Generation, vocabulary int) []kv.Token {
	eos := g.EOS
	if len(eos) == 0 {
		eos = f.EOS
	}
	return slices.DeleteFunc(slices.Clone(eos), func(t kv.Token) bool { return int(t) >= vocabulary })
}

// Sampling returns the sampling parameters that a checkpoint recommends. By default temperature is 1 and
// filters are off; do_sample false is greedy regardless of the other fields.
func (g *Generation) Sampling() engine.Sampling {
	if g.DoSample != nil && !*g.DoSample {
		return engine.Sampling{RepetitionPenalty: valueOr(g.RepetitionPenalty, 0)}
	}
	return engine.Sampling{
		Temperature:       valueOr(g.Temperature, 1),
		TopK:              max(0, valueOr(g.TopK, 0)), // some files encode off as -1
		TopP:              valueOr(g.TopP, 0),
		MinP:              valueOr(g.MinP, 0),
		RepetitionPenalty: valueOr(g.RepetitionPenalty, 0),
	}
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
