package tiny

import (
	"context"
	"fmt"

	"penstock/core/media/family"
	"penstock/internal/engine/tiny/checkpoint"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/patch"
)

// openNetwork returns the network that cfg names.
func openNetwork(ctx context.Context, cfg *Config) (*network, error) {
	if cfg.ModelPath == "" {
		return newBuiltinNetwork(ctx, &cfg.Vocabulary)
	}
	m, info, err := model.Load(ctx, cfg.ModelPath)
	if err != nil {
		return nil, err
	}
	senses, err := openEncoders(m, cfg.ModelPath)
	if err != nil {
		return nil, err
	}
	return &network{
		encoders: senses,
		model:    m,
		eos:      checkpoint.EndOfSequence(&info.Config.Facts, &info.Generation, m.Config().VocabSize),
		mask:     cfg.Mask,
		defaults: info.Generation.Sampling(),
	}, nil
}

// openEncoders returns the media encoders of a checkpoint's model, nil if it has none.
func openEncoders(m *model.Model, dir string) (*mediaEncoders, error) {
	if m.Config().Vision == (model.Vision{}) {
		return nil, nil
	}
	p, err := checkpoint.ReadProcessors(dir)
	if err != nil {
		return nil, err
	}
	colours, err := p.Colours()
	if err != nil {
		return nil, err
	}
	f, err := family.Open(family.CheckpointFiles(p), nil)
	if err != nil {
		return nil, fmt.Errorf("how many tokens its pictures take cannot be told: %w", err)
	}
	return newMediaEncoders(m, f, patch.Colours(colours)), nil
}
