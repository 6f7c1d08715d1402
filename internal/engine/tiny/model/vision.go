package model

import (
	"errors"
	"fmt"

	"penstock/core/fault"
)

// Vision is the shape of an encoder of pictures and videos, Qwen2-VL's: patches of Patch × Patch pixels of
// Temporal frames at a time become rows, which pass through blocks of attention and feed-forward layers,
// frame by frame; then Merge × Merge neighbours are merged into one row of the decoder's width. The zero
// value is none.
type Vision struct {
	Depth        int // blocks
	Dim          int // width of a patch's row
	Heads        int // divides Dim into widths that are multiples of 4
	Intermediate int // width of the feed-forward layers
	Patch        int // pixels
	Merge        int
	Temporal     int // frames
}

// layerEps is the epsilon of the encoders' norms.
const layerEps = 1e-6

// visionTheta is the base of the frequencies of positions in pictures.
const visionTheta = 10_000

// PatchElements is how many elements a patch has: RGB, frames, rows, columns.
func (v *Vision) PatchElements() int { return 3 * v.Temporal * v.Patch * v.Patch }

func (v *Vision) validate() error {
	if *v == (Vision{}) {
		return nil
	}
	for _, dim := range []int{v.Depth, v.Dim, v.Heads, v.Intermediate, v.Patch, v.Merge, v.Temporal} {
		if dim < 1 || dim > 1<<16 {
			return fmt.Errorf("model config: vision %+v; every one must be between 1 and %d", *v, 1<<16)
		}
	}
	var errs []error
	if v.Dim%v.Heads != 0 || v.Dim/v.Heads%4 != 0 {
		errs = append(errs, fault.New(fault.Invalid, "model config: vision of width %d cannot be cut into %d heads of whole quarters", v.Dim, v.Heads))
	}
	if v.Patch > 1<<8 || v.Merge > 1<<4 || v.Temporal > 1<<4 {
		errs = append(errs, fault.New(fault.Invalid, "model config: vision with patches of %d pixels and %d frames, merged by %d; at most 256, 16 and 16 are supported", v.Patch, v.Temporal, v.Merge))
	}
	return errors.Join(errs...)
}

// visionWeight names a weight of the encoder as published checkpoints do.
func visionWeight(part string) string { return "visual." + part }

func visionBlockWeight(block int, part string) string {
	return fmt.Sprintf("visual.blocks.%d.%s", block, part)
}

// weightSpecs lists the encoder's weights, for a decoder of width hidden.
func (v *Vision) weightSpecs(hidden int) (specs []Spec) {
	if *v == (Vision{}) {
		return nil
	}
	add := func(name string, shape ...int) { specs = append(specs, Spec{name, shape}) }
	both := func(name string, shape ...int) { // and a bias
		add(name+".weight", shape...)
		add(name+".bias", shape[0])
	}
	add(visionWeight("patch_embed.proj.weight"), v.Dim, 3, v.Temporal, v.Patch, v.Patch)
	for i := range v.Depth {
		both(visionBlockWeight(i, "norm1"), v.Dim)
		both(visionBlockWeight(i, "attn.qkv"), 3*v.Dim, v.Dim)
		both(visionBlockWeight(i, "attn.proj"), v.Dim, v.Dim)
		both(visionBlockWeight(i, "norm2"), v.Dim)
		both(visionBlockWeight(i, "mlp.fc1"), v.Intermediate, v.Dim)
		both(visionBlockWeight(i, "mlp.fc2"), v.Dim, v.Intermediate)
	}
	both(visionWeight("merger.ln_q"), v.Dim)
	merged := v.Dim * v.Merge * v.Merge
	both(visionWeight("merger.mlp.0"), merged, merged)
	both(visionWeight("merger.mlp.2"), hidden, merged)
	return specs
}

// visionEncoder holds the weights of the encoder.
type visionEncoder struct {
	embed          *matrix // without a bias
	blocks         []visionLayer
	norm           layerNorm
	merge, project linear
	freqs          []float32 // [head width / 4], for rows and for columns
}

type visionLayer struct {
	attnNorm, mlpNorm  layerNorm
	qkv, out, up, down linear
}

// layerNorm is a normalization to mean 0 and variance 1, followed by scaling and shifting.
type layerNorm struct{ weight, bias []float32 }

// linear is a product with a bias.
type linear struct {
	w    *matrix
	bias []float32
}

func (l *weightLoader) loadLayerNorm(name string) layerNorm {
	return layerNorm{weight: l.loadVector(name + ".weight"), bias: l.loadVector(name + ".bias")}
}

func (l *weightLoader) loadLinear(rows, cols int, name string) linear {
	return linear{w: l.loadMatrix(rows, cols, name+".weight"), bias: l.loadVector(name + ".bias")}
}

// loadVision loads the encoder; nil if the model has none.
func (m *Model) loadVision(l *weightLoader) *visionEncoder {
	v := &m.cfg.Vision
	if *v == (Vision{}) {
		return nil
	}
	e := &visionEncoder{embed: l.loadMatrix(v.PatchElements(), v.Dim, visionWeight("patch_embed.proj.weight"))}
	for i := range v.Depth {
		e.blocks = append(e.blocks, visionLayer{
			attnNorm: l.loadLayerNorm(visionBlockWeight(i, "norm1")),
			qkv:      l.loadLinear(v.Dim, 3*v.Dim, visionBlockWeight(i, "attn.qkv")),
			out:      l.loadLinear(v.Dim, v.Dim, visionBlockWeight(i, "attn.proj")),
			mlpNorm:  l.loadLayerNorm(visionBlockWeight(i, "norm2")),
			up:       l.loadLinear(v.Dim, v.Intermediate, visionBlockWeight(i, "mlp.fc1")),
			down:     l.loadLinear(v.Intermediate, v.Dim, visionBlockWeight(i, "mlp.fc2")),
		})
	}
	merged := v.Dim * v.Merge * v.Merge
	e.norm = l.loadLayerNorm(visionWeight("merger.ln_q"))
	e.merge = l.loadLinear(merged, merged, visionWeight("merger.mlp.0"))
	e.project = l.loadLinear(merged, m.cfg.HiddenSize, visionWeight("merger.mlp.2"))
	half := Config{HeadDim: v.Dim / v.Heads / 2, RopeTheta: visionTheta}
	e.freqs = half.rotaryFrequencies()
	return e
}
