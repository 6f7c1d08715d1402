package model

import (
	"errors"
	"fmt"
)

// Config is the shape of a decoder. It is comparable.
type Config struct {
	HiddenSize   int // width of the residual stream
	Layers       int
	Heads        int // query heads
	KVHeads      int // key and value heads; divides Heads
	HeadDim      int // width of one head; even
	Intermediate int // width of the feed-forward layer
	VocabSize    int
	MaxPositions int // longest sequence, in tokens
	RopeTheta    float64
	RopeScaling  RopeScaling
	RMSEps       float64
	// QKVBias adds biases to the query, key and value projections, as in Qwen2.
	QKVBias bool
	// QKNorm normalises each query and key head before rotation, as in Qwen3.
	QKNorm bool
	// TieEmbeddings makes the embedding table serve as the head.
	TieEmbeddings bool
	// MRope splits the rotary pairs of each head: the given numbers of pairs rotate by a token's position in
	// time, height and width. Zero rotates all by one position. See [PlacedMedia].
	MRope [3]int
	// Vision and Audio are the encoders of media.
	Vision Vision
	Audio  Audio
}

// RopeScaling stretches the rotary positions of a model beyond the context it
// was trained on. The zero value leaves them as they are.
type RopeScaling struct {
	// Type is "" for none, "linear" (every position divided by Factor) or
	// "llama3" (slow rotations divided by Factor, fast ones kept).
	Type   string
	Factor float64
	// LowFreqFactor, HighFreqFactor and OriginalMaxPositions say which rotations
	// are slow and fast; "llama3" only.
	LowFreqFactor, HighFreqFactor float64
	OriginalMaxPositions          int
}

// maxDim keeps the product of any three dimensions within 63 bits.
const maxDim = 1 << 20

// Validate reports every problem of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	report := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("model config: "+format, args...))
		}
	}
	for _, dim := range []struct {
		name  string
		value int
	}{
		{"HiddenSize", c.HiddenSize},
		{"Layers", c.Layers},
		{"Heads", c.Heads},
		{"KVHeads", c.KVHeads},
		{"HeadDim", c.HeadDim},
		{"Intermediate", c.Intermediate},
		{"VocabSize", c.VocabSize},
	} {
		report(dim.value >= 1 && dim.value <= maxDim, "%s is %d, want 1 to %d", dim.name, dim.value, maxDim)
	}
	report(c.MaxPositions >= 1 && c.MaxPositions <= 1<<24, "MaxPositions is %d, want 1 to %d", c.MaxPositions, 1<<24)
	report(c.KVHeads < 1 || c.Heads%c.KVHeads == 0, "Heads %d is no multiple of KVHeads %d", c.Heads, c.KVHeads)
	report(c.HeadDim%2 == 0, "HeadDim %d is odd; rotary positions need pairs", c.HeadDim)
	report(c.Heads <= maxDim/max(c.HeadDim, 1), "Heads %d times HeadDim %d is above %d", c.Heads, c.HeadDim, maxDim)
	report(c.RopeTheta > 0, "RopeTheta is %v, want above 0", c.RopeTheta)
	report(c.RMSEps > 0 && c.RMSEps < 1, "RMSEps is %v, want between 0 and 1", c.RMSEps)
	sections := c.MRope[0] + c.MRope[1] + c.MRope[2]
	report(c.MRope == [3]int{} || min(c.MRope[0], c.MRope[1], c.MRope[2]) >= 0 && sections == c.HeadDim/2,
		"sections %v of rotary positions do not make the %d pairs of a head", c.MRope, c.HeadDim/2)
	errs = append(errs, c.RopeScaling.validate(), c.Vision.validate(), c.Audio.validate())
	return errors.Join(errs...)
}

func (s *RopeScaling) validate() error {
	switch s.Type {
	case "":
		return nil
	case "linear":
		if s.Factor < 1 {
			return fmt.Errorf("model config: linear rope scaling with factor %v, want at least 1", s.Factor)
		}
		return nil
	case "llama3":
		if s.Factor < 1 || s.LowFreqFactor <= 0 || s.HighFreqFactor <= s.LowFreqFactor || s.OriginalMaxPositions < 1 {
			return fmt.Errorf("model config: llama3 rope scaling needs factor >= 1, 0 < low_freq_factor < high_freq_factor and original_max_position_embeddings")
		}
		return nil
	}
	return fmt.Errorf("model config: rope scaling %.100q is not supported; supported are linear and llama3", s.Type)
}

// Spec is the name and the shape of one weight: rows are outputs, columns are inputs.
type Spec struct {
	Name  string
	Shape []int
}

// Specs lists the weights of a model of this configuration, under the names of published checkpoints, in the
// order of the computation.
func (c *Config) Specs() []Spec {
	specs := []Spec{{embedName, []int{c.VocabSize, c.HiddenSize}}}
	for layer := range c.Layers {
		specs = append(specs, c.layerSpecs(layer)...)
	}
	specs = append(specs, Spec{finalNormName, []int{c.HiddenSize}})
	if !c.TieEmbeddings {
		specs = append(specs, Spec{headName, []int{c.VocabSize, c.HiddenSize}})
	}
	return append(append(specs, c.Vision.weightSpecs(c.HiddenSize)...), c.Audio.weightSpecs(c.HiddenSize)...)
}

const (
	embedName     = "model.embed_tokens.weight"
	finalNormName = "model.norm.weight"
	headName      = "lm_head.weight"
)

func layerName(layer int, part string) string {
	return fmt.Sprintf("model.layers.%d.%s", layer, part)
}

func (c *Config) layerSpecs(layer int) []Spec {
	query, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	var specs []Spec
	add := func(part string, shape ...int) {
		specs = append(specs, Spec{layerName(layer, part), shape})
	}
	add("input_layernorm.weight", c.HiddenSize)
	add("self_attn.q_proj.weight", query, c.HiddenSize)
	add("self_attn.k_proj.weight", kv, c.HiddenSize)
	add("self_attn.v_proj.weight", kv, c.HiddenSize)
	if c.QKVBias {
		add("self_attn.q_proj.bias", query)
		add("self_attn.k_proj.bias", kv)
		add("self_attn.v_proj.bias", kv)
	}
	if c.QKNorm {
		add("self_attn.q_norm.weight", c.HeadDim)
		add("self_attn.k_norm.weight", c.HeadDim)
	}
	add("self_attn.o_proj.weight", c.HiddenSize, query)
	add("post_attention_layernorm.weight", c.HiddenSize)
	add("mlp.gate_proj.weight", c.Intermediate, c.HiddenSize)
	add("mlp.up_proj.weight", c.Intermediate, c.HiddenSize)
	add("mlp.down_proj.weight", c.HiddenSize, c.Intermediate)
	return specs
}

// BlockBytes is the memory of one block of blockSize tokens in a cache.
func (c *Config) BlockBytes(blockSize int) int {
	return 2 * 4 * c.Layers * c.KVHeads * c.HeadDim * blockSize
}

// WeightBytes is the memory of a model's weights.
func (c *Config) WeightBytes() (bytes uint64) {
	for _, s := range c.Specs() {
		size := uint64(4)
		for _, n := range s.Shape {
			size *= uint64(n)
		}
		bytes += size
	}
	return bytes
}

// qkvCols is the width of the fused query, key and value projection.
func (c *Config) qkvCols() int { return (c.Heads + 2*c.KVHeads) * c.HeadDim }
