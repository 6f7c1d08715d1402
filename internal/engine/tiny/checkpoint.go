package tiny

import (
	"context"
	"slices"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/checkpoint"
	"penstock/internal/engine/tiny/model"
)

// open returns the network that cfg names.
func open(ctx context.Context, cfg *Config) (*network, error) {
	if cfg.ModelPath == "" {
		return builtin(ctx, &cfg.Vocabulary)
	}
	m, info, err := model.Load(ctx, cfg.ModelPath)
	if err != nil {
		return nil, err
	}
	return &network{
		model:    m,
		eos:      endOfSequence(&info, m.Config().VocabSize),
		mask:     cfg.Mask,
		defaults: recommended(&info.Generation),
	}, nil
}

// endOfSequence returns the tokens that end an answer: those of
// generation_config.json, which knows the end of a turn too, else those of
// config.json. Ids that the model cannot draw are left out.
func endOfSequence(info *model.Info, vocab int) []kv.Token {
	eos := info.Generation.EOS
	if len(eos) == 0 {
		eos = info.Config.EOS
	}
	return slices.DeleteFunc(slices.Clone(eos), func(t kv.Token) bool { return int(t) >= vocab })
}

// recommended returns the sampling parameters that a checkpoint asks for. Where
// it does not say, temperature is 1 and filters are off; do_sample false is
// greedy whatever else the file has.
func recommended(g *checkpoint.Generation) engine.Sampling {
	if g.DoSample != nil && !*g.DoSample {
		return engine.Sampling{RepetitionPenalty: valueOr(g.RepetitionPenalty, 0)}
	}
	return engine.Sampling{
		Temperature:       valueOr(g.Temperature, 1),
		TopK:              max(0, valueOr(g.TopK, 0)), // some files write off as -1
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
