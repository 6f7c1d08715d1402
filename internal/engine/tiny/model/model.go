// Package model is a transformer decoder on the CPU, over a paged KV cache: the Llama architecture and its
// near relatives, in float32.
//
// It guarantees that the logits of a token are bit-identical regardless of what else is in the batch, how its
// prompt was cut into chunks, which of the tokens before it came from a cache, and which blocks hold them.
// Everything else in the built-in engine (prefix reuse, continuous batching, preemption, streams that move
// between workers) is exact because of it. It holds between models of equal [Model.Numerics].
//
// The guarantee rests on three rules. A token's row goes through every layer independently. Each sum runs
// over its terms in one fixed order: over the inputs of a product, over the positions of a sequence from the
// first on. And each kind of operation has one implementation, with one rounding rule, for one row and for
// many.
package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Model is a decoder with its weights. It is immutable and may be used by any
// number of caches at once.
type Model struct {
	cfg      Config
	kernel   kernel
	freqs    []float32 // of the rotary positions, [HeadDim/2]
	layers   []layer
	norm     []float32
	head     *matrix
	embed    []float32      // [VocabSize, HiddenSize]; nil when the head is tied
	vision   *visionEncoder // nil if the model accepts no pictures
	audio    *audioEncoder  // nil if the model accepts no sounds
	numerics string
	// encoderNumerics is "" without encoders.
	encoderNumerics string
}

// layer holds the weights of one layer. The query, key and value projections
// are fused into one matrix, in that order, and so are gate and up.
type layer struct {
	attnNorm, mlpNorm []float32
	qkv, out          *matrix
	bias              []float32 // of qkv, or nil
	qNorm, kNorm      []float32 // or nil
	gateUp, down      *matrix
}

// New builds a model from weights in the layout of published checkpoints: see [Config.Specs] for names and
// shapes. It copies the weights into a layout of its own. It is an error if a weight is missing, has another
// shape, is not finite, or is unknown: a checkpoint with a weight that would be ignored has another
// architecture. It ends early, with ctx's error, when ctx does.
func New(ctx context.Context, cfg Config, w Tensors) (*Model, error) {
	return newModel(ctx, cfg, w, fastestKernel())
}

func newModel(ctx context.Context, cfg Config, w Tensors, k kernel) (*Model, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := checkNames(&cfg, w.Names()); err != nil {
		return nil, err
	}
	m := &Model{cfg: cfg, kernel: k, freqs: cfg.rotaryFrequencies()}
	l := newWeightLoader(w, cfg.Specs(), k.panelWidth())
	for i := range cfg.Layers {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("model: loading stopped before layer %d of %d: %w", i, cfg.Layers, err)
		}
		m.layers = append(m.layers, m.loadLayer(l, i))
	}
	m.norm = l.loadVector(finalNormName)
	m.loadEmbeddings(l)
	l.encoderSum = newDigester()
	m.vision, m.audio = m.loadVision(l), m.loadAudio(l)
	if l.err != nil {
		return nil, l.err
	}
	rows := m.probeEncoders()
	m.numerics = m.describeNumerics(l.weightDigest(), rows)
	if m.vision != nil || m.audio != nil {
		m.encoderNumerics = m.describeEncoders(l.encoderSum, rows)
	}
	return m, nil
}

func (m *Model) loadLayer(l *weightLoader, i int) layer {
	name := func(part string) string { return layerName(i, part) }
	c := &m.cfg
	at := layer{
		attnNorm: l.loadVector(name("input_layernorm.weight")),
		mlpNorm:  l.loadVector(name("post_attention_layernorm.weight")),
		qkv: l.loadMatrix(c.HiddenSize, c.qkvCols(),
			name("self_attn.q_proj.weight"), name("self_attn.k_proj.weight"), name("self_attn.v_proj.weight")),
		out:    l.loadMatrix(c.Heads*c.HeadDim, c.HiddenSize, name("self_attn.o_proj.weight")),
		gateUp: l.loadMatrix(c.HiddenSize, 2*c.Intermediate, name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")),
		down:   l.loadMatrix(c.Intermediate, c.HiddenSize, name("mlp.down_proj.weight")),
	}
	if c.QKVBias {
		at.bias = slices.Concat(
			l.loadVector(name("self_attn.q_proj.bias")), l.loadVector(name("self_attn.k_proj.bias")), l.loadVector(name("self_attn.v_proj.bias")))
	}
	if c.QKNorm {
		at.qNorm, at.kNorm = l.loadVector(name("self_attn.q_norm.weight")), l.loadVector(name("self_attn.k_norm.weight"))
	}
	return at
}

// loadEmbeddings loads the embedding and the head. When they are tied only the head is kept; embeddings are
// its columns.
func (m *Model) loadEmbeddings(l *weightLoader) {
	c := &m.cfg
	if c.TieEmbeddings {
		m.head = l.loadMatrix(c.HiddenSize, c.VocabSize, embedName)
		return
	}
	m.embed = l.loadVector(embedName)
	m.head = l.loadMatrix(c.HiddenSize, c.VocabSize, headName)
}

// copyEmbedding copies the embedding of token into dst.
func (m *Model) copyEmbedding(dst []float32, token int) {
	if m.embed == nil {
		m.head.copyColumn(dst, token)
		return
	}
	copy(dst, m.embed[token*m.cfg.HiddenSize:])
}

// Config returns the model's configuration.
func (m *Model) Config() Config { return m.cfg }

// Numerics names everything that the bits of a logit depend on: the kernel, the architecture, the weights and
// the configuration, and a digest of logits that this very build computed. Two models of equal Numerics
// continue each other's streams exactly.
func (m *Model) Numerics() string { return m.numerics }

// EncoderNumerics names everything that the bits of the media encoders' rows depend on, as Numerics does for logits;
// "" if there are none. The weights of the decoder are not part of it.
func (m *Model) EncoderNumerics() string { return m.encoderNumerics }

// checkNames finds weights that the model would ignore.
func checkNames(c *Config, names []string) error {
	known := make(map[string]bool)
	for _, s := range c.Specs() {
		known[s.Name] = true
	}
	var errs []error
	for _, name := range names {
		if known[name] || isIgnorable(c, name) {
			continue
		}
		if len(errs) == 8 {
			errs = append(errs, errors.New("model: further weights do not belong to it either"))
			break
		}
		errs = append(errs, fmt.Errorf("model: weight %.100q does not belong to a model of this configuration; is the architecture in its config.json right?", name))
	}
	return errors.Join(errs...)
}

// isIgnorable reports whether a weight is a copy of something that the model has anyway: the rotary table of
// old checkpoints, or a tied head.
func isIgnorable(c *Config, name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq") || name == headName && c.TieEmbeddings
}

// weightLoader fetches weights, checks them and digests them. After the first error it does nothing; the
// error is checked once, at the end.
type weightLoader struct {
	source     Tensors
	panelWidth int // columns of a panel
	shapes     map[string][]int
	sum        *digester
	encoderSum *digester // of the encoders' weights; nil before they are loaded
	err        error
}

func newWeightLoader(w Tensors, specs []Spec, wide int) *weightLoader {
	l := &weightLoader{source: w, panelWidth: wide, shapes: make(map[string][]int), sum: newDigester()}
	for _, s := range specs {
		l.shapes[s.Name] = s.Shape
	}
	return l
}

func (l *weightLoader) weightDigest() *digester { return l.sum }

// fetchWeight returns the values of one weight, which belong to the source.
func (l *weightLoader) fetchWeight(name string) []float32 {
	if l.err != nil {
		return nil
	}
	t, err := l.source.Tensor(name)
	if err != nil {
		l.err = err
		return nil
	}
	want := l.shapes[name]
	elements := 1
	for _, n := range want {
		elements *= n
	}
	switch i := firstNotFinite(t.Data); {
	case !slices.Equal(t.Shape, want):
		l.err = fmt.Errorf("model: weight %.100q has shape %v, its configuration says %v", name, t.Shape, want)
	case len(t.Data) != elements:
		l.err = fmt.Errorf("model: weight %.100q has %d elements for shape %v", name, len(t.Data), t.Shape)
	case i >= 0:
		l.err = fmt.Errorf("model: weight %.100q is not finite at element %d; the checkpoint is damaged", name, i)
	default:
		l.sum.addWeight(name, t.Data)
		if l.encoderSum != nil {
			l.encoderSum.addWeight(name, t.Data)
		}
		return t.Data
	}
	return nil
}

// loadVector returns a copy of one weight.
func (l *weightLoader) loadVector(name string) []float32 { return slices.Clone(l.fetchWeight(name)) }

// loadMatrix packs weights with the same inputs next to each other.
func (l *weightLoader) loadMatrix(rows, cols int, names ...string) *matrix {
	if l.err != nil {
		return nil
	}
	w := newMatrix(rows, cols, l.panelWidth)
	first := 0
	for _, name := range names {
		data := l.fetchWeight(name)
		w.packColumns(first, data)
		first += len(data) / rows
	}
	return w
}

// firstNotFinite returns the index of the first NaN or infinity, or -1.
func firstNotFinite(data []float32) int {
	const exponent = 0xff << 23
	for i, v := range data {
		if math.Float32bits(v)&exponent == exponent {
			return i
		}
	}
	return -1
}
