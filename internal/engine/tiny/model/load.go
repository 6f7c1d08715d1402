package model

import (
	"context"
	"errors"
	"fmt"

	"penstock/internal/engine/tiny/checkpoint"
)

// Info is what a checkpoint says beside its weights.
type Info struct {
	Config     checkpoint.Config
	Generation checkpoint.Generation
}

// Load builds the model in a checkpoint directory: config.json, weights as
// safetensors, and generation_config.json if it is there. What the package does
// not compute is refused by name rather than computed wrongly. It ends early, with
// ctx's error, when ctx does: weights may be many seconds' reading.
func Load(ctx context.Context, dir string) (*Model, Info, error) {
	m, info, err := load(ctx, dir, fastest())
	if err != nil {
		return nil, Info{}, fmt.Errorf("load %s: %w", dir, err)
	}
	return m, info, nil
}

func load(ctx context.Context, dir string, k kernel) (_ *Model, info Info, err error) {
	if info.Config, err = checkpoint.ReadConfig(dir); err != nil {
		return nil, info, err
	}
	if info.Generation, err = checkpoint.ReadGeneration(dir); err != nil {
		return nil, info, err
	}
	cfg, err := configure(&info.Config)
	if err != nil {
		return nil, info, err
	}
	weights, err := checkpoint.Open(dir)
	if err != nil {
		return nil, info, err
	}
	m, err := newModel(ctx, cfg, weights, k)
	return m, info, errors.Join(err, weights.Close())
}

// configure turns a checkpoint's configuration into a model's, and reports
// everything in it that is not supported at once.
func configure(c *checkpoint.Config) (Config, error) {
	cfg := Config{
		HiddenSize:    c.HiddenSize,
		Layers:        c.Layers,
		Heads:         c.Heads,
		KVHeads:       c.KVHeads,
		HeadDim:       c.HeadDim,
		Intermediate:  c.Intermediate,
		VocabSize:     c.VocabSize,
		MaxPositions:  c.MaxPositions,
		RopeTheta:     c.Rope.Theta,
		RMSEps:        c.RMSEps,
		TieEmbeddings: c.TieEmbeddings,
	}
	// What the architectures take a missing field to be.
	if cfg.KVHeads == 0 {
		cfg.KVHeads = cfg.Heads
	}
	if cfg.HeadDim == 0 && cfg.Heads > 0 {
		cfg.HeadDim = cfg.HiddenSize / cfg.Heads
	}
	if cfg.RopeTheta == 0 {
		cfg.RopeTheta = 10000
	}
	errs := []error{cfg.setArchitecture(c), cfg.setRope(&c.Rope)}
	errs = append(errs, unsupported(c)...)
	errs = append(errs, cfg.Validate())
	return cfg, errors.Join(errs...)
}

func (cfg *Config) setArchitecture(c *checkpoint.Config) error {
	if len(c.Architectures) != 1 {
		return fmt.Errorf("config.json: %d architectures, want one", len(c.Architectures))
	}
	switch c.Architectures[0] {
	case "LlamaForCausalLM", "MistralForCausalLM":
	case "Qwen2ForCausalLM":
		cfg.QKVBias = true
	case "Qwen3ForCausalLM":
		cfg.QKNorm = true
	default:
		return fmt.Errorf("config.json: architecture %.100q is not supported; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM", c.Architectures[0])
	}
	return nil
}

func (cfg *Config) setRope(r *checkpoint.Rope) error {
	if r.Partial != 0 && r.Partial != 1 {
		return fmt.Errorf("config.json: partial_rotary_factor %v is not supported; heads are rotated in full", r.Partial)
	}
	if r.Type == "" || r.Type == "default" {
		return nil
	}
	cfg.RopeScaling = RopeScaling{Type: r.Type, Factor: r.Factor}
	if r.Type == "llama3" {
		cfg.RopeScaling.LowFreqFactor, cfg.RopeScaling.HighFreqFactor = r.LowFreqFactor, r.HighFreqFactor
		cfg.RopeScaling.OriginalMaxPositions = r.OriginalMaxPositions
	}
	return nil
}

// unsupported lists the features that the weights were made for and that would
// be ignored.
func unsupported(c *checkpoint.Config) (errs []error) {
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("config.json: "+format, args...))
	}
	if c.Activation != "silu" {
		refuse("hidden_act %.100q is not supported; supported is silu", c.Activation)
	}
	if c.AttentionBias {
		refuse("attention_bias is not supported for this architecture")
	}
	if c.MLPBias {
		refuse("mlp_bias is not supported")
	}
	if c.Quantization != "" {
		refuse("quantization_config (%s) is not supported; use a checkpoint in BF16, F16 or F32", c.Quantization)
	}
	if c.SlidingWindow > 0 && c.SlidingWindow < c.MaxPositions {
		refuse("sliding_window %d is not supported; contexts up to it can be served by setting max_position_embeddings to %d", c.SlidingWindow, c.SlidingWindow)
	}
	for i, typ := range c.LayerTypes {
		if typ != "full_attention" {
			refuse("layer %d is of type %.100q; supported is full_attention", i, typ)
			break
		}
	}
	return errs
}
