package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"penstock/internal/engine/tiny/checkpoint"
)

// Info is a checkpoint's configuration.
type Info struct {
	Config     checkpoint.Config
	Generation checkpoint.Generation
}

// Load builds the model in a checkpoint directory: config.json, weights as safetensors, and
// generation_config.json if present. It refuses by name what the package does not compute, rather than
// computing it wrongly. It ends early, with ctx's error, when ctx does: weights may take many seconds to
// read.
func Load(ctx context.Context, dir string) (*Model, Info, error) {
	m, info, err := loadWithKernel(ctx, dir, fastestKernel())
	if err != nil {
		return nil, Info{}, fmt.Errorf("load %s: %w", dir, err)
	}
	return m, info, nil
}

func loadWithKernel(ctx context.Context, dir string, k kernel) (_ *Model, info Info, err error) {
	if info.Config, err = checkpoint.ReadConfig(dir); err != nil {
		return nil, info, err
	}
	if info.Generation, err = checkpoint.ReadGeneration(dir); err != nil {
		return nil, info, err
	}
	cfg, err := newConfig(&info.Config)
	if err != nil {
		return nil, info, err
	}
	weights, err := checkpoint.Open(dir)
	if err != nil {
		return nil, info, err
	}
	var source Tensors = weights
	if cfg.Vision != (Vision{}) {
		source = renamedTensors{weights}
	}
	m, err := newModel(ctx, cfg, source, k)
	return m, info, errors.Join(err, weights.Close())
}

// newConfig turns a checkpoint's configuration into a model's, and reports every unsupported part at once.
func newConfig(c *checkpoint.Config) (Config, error) {
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
	// The architectures' defaults of missing fields.
	cfg.KVHeads = cmp.Or(cfg.KVHeads, cfg.Heads)
	if cfg.HeadDim == 0 && cfg.Heads > 0 {
		cfg.HeadDim = cfg.HiddenSize / cfg.Heads
	}
	cfg.RopeTheta = cmp.Or(cfg.RopeTheta, 10000)
	errs := []error{cfg.setArchitecture(c), cfg.setRope(&c.Rope), cfg.setVision(c)}
	errs = append(errs, listUnsupported(c)...)
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
	case "Qwen2VLForConditionalGeneration":
		cfg.QKVBias = true
	case "Qwen3ForCausalLM":
		cfg.QKNorm = true
	default:
		return fmt.Errorf("config.json: architecture %.100q is not supported; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen2VLForConditionalGeneration and Qwen3ForCausalLM", c.Architectures[0])
	}
	return nil
}

// isVisionModel reports whether an architecture has a picture encoder.
func isVisionModel(architectures []string) bool {
	return len(architectures) == 1 && architectures[0] == "Qwen2VLForConditionalGeneration"
}

// setVision copies the encoder's shape, for architectures that have one. For others it refuses a
// vision_config, which would mean a different model.
func (cfg *Config) setVision(c *checkpoint.Config) error {
	v := c.Vision
	switch has := isVisionModel(c.Architectures); {
	case !has && v == nil && c.Rope.Sections == nil:
		return nil
	case !has:
		return fmt.Errorf("config.json: vision_config and mrope_section are not supported for this architecture")
	case v == nil:
		return fmt.Errorf("config.json: vision_config is missing")
	case len(c.Rope.Sections) != 3:
		return fmt.Errorf("config.json: mrope_section has %d numbers, want 3", len(c.Rope.Sections))
	case c.ImageToken == nil || c.VideoToken == nil:
		return fmt.Errorf("config.json: image_token_id and video_token_id are needed to know where pictures are shown")
	case v.Activation != "" && v.Activation != "quick_gelu":
		return fmt.Errorf("config.json: vision_config: hidden_act %.100q is not supported; supported is quick_gelu", v.Activation)
	case v.Channels != 0 && v.Channels != 3:
		return fmt.Errorf("config.json: vision_config: %d channels are not supported; supported are 3", v.Channels)
	case v.Hidden != 0 && v.Hidden != c.HiddenSize:
		return fmt.Errorf("config.json: vision_config: hidden_size is %d, the decoder's is %d", v.Hidden, c.HiddenSize)
	case v.Rope.Theta != 0 && v.Rope.Theta != visionTheta, v.Rope.Type != "" && v.Rope.Type != "axial":
		return fmt.Errorf("config.json: vision_config: rotary positions %.100q with base %v are not supported; supported is axial with %d", v.Rope.Type, v.Rope.Theta, visionTheta)
	}
	copy(cfg.MRope[:], c.Rope.Sections)
	or := func(n, missing int) int {
		if n == 0 {
			return missing
		}
		return n
	}
	ratio := v.MLPRatio
	ratio = cmp.Or(ratio, 4)
	cfg.Vision = Vision{
		Depth: v.Depth, Dim: v.Dim, Heads: v.Heads, Intermediate: int(float64(v.Dim) * ratio),
		Patch: or(v.Patch, 14), Merge: or(v.Merge, 2), Temporal: or(v.Temporal, 2),
	}
	return nil
}

func (cfg *Config) setRope(r *checkpoint.Rope) error {
	if r.Partial != 0 && r.Partial != 1 {
		return fmt.Errorf("config.json: partial_rotary_factor %v is not supported; heads are rotated in full", r.Partial)
	}
	if r.Type == "" || r.Type == "default" || r.Type == "mrope" { // by sections; see setVision
		return nil
	}
	cfg.RopeScaling = RopeScaling{Type: r.Type, Factor: r.Factor}
	if r.Type == "llama3" {
		cfg.RopeScaling.LowFreqFactor, cfg.RopeScaling.HighFreqFactor = r.LowFreqFactor, r.HighFreqFactor
		cfg.RopeScaling.OriginalMaxPositions = r.OriginalMaxPositions
	}
	return nil
}

// listUnsupported lists the features for which the weights were made and which would be ignored.
func listUnsupported(c *checkpoint.Config) (errs []error) {
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
