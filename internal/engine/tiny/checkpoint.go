package tiny

import (
	"context"

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
		eos:      checkpoint.EndOfSequence(&info.Config, &info.Generation, m.Config().VocabSize),
		mask:     cfg.Mask,
		defaults: info.Generation.Sampling(),
	}, nil
}
