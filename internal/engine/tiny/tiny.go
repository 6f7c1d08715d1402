// Package tiny is an engine that runs decoder transformers on the CPU: a real one, with paged KV cache,
// prefix reuse, continuous batching and chunked prefill, small enough to come with the binary.
//
// It serves a checkpoint directory or the built-in model, whose weights are made from a fixed seed: its
// output is nonsense, but deterministic, over a real vocabulary, at the cost of a real forward pass.
//
// Package batch has the loop, the queue and the streams.
//
// # Bit-identity
//
// The tokens of a request are a function of the request and of [engine.Card]'s Numerics alone: not of the
// batch around it, of how its prompt was cut into steps, of what came from the cache, nor of preemptions and
// earlier attempts.
//
// # Structured output
//
// If the texts of tokens are known, a request may have a guide, the schema of its output. Its position in the
// schema is rebuilt from the text of what was generated before, so it is a function of the request too.
//
// # Media
//
// The built-in model, and checkpoints of Qwen2-VL, accept pictures and videos, and the former also sounds. An
// object is encoded beside the model's passes while its request is in the scheduler, once for all choices and for
// other requests with the same object, and its rows replace the embeddings of its pads. They are a function of the
// object alone, so the bit-identity above holds. An object all of whose pads are in the KV cache is left out: its grid
// gives the positions of what follows. One whose size is unknown before it is decoded is not. Rows are given up when
// their tokens are computed, unless package encode says that the request keeps them: a sequence which is preempted after
// that has its media encoded again.
//
// # Embeddings
//
// An embedding is a sequence without sampling: its last hidden states are summed as they are computed, and it
// ends with its prompt. It does not take part in prefix reuse, in either direction: a cached token has K and
// V but no hidden state, and no request is known to need what it would leave in the cache.
package tiny

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/engine/tiny/checkpoint"
	"penstock/internal/engine/tiny/grammar"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/patch"
	"penstock/internal/engine/tiny/sample"
)

// Engine is a CPU engine for one model. Create it with [New].
type Engine struct {
	*batch.Engine
	cpu    *computer
	hidden int // size of a hidden state
}

// Compile-time guards.
var (
	_ engine.Engine        = (*Engine)(nil)
	_ engine.KVSource      = (*Engine)(nil)
	_ engine.LoadSource    = (*Engine)(nil)
	_ engine.Embedder      = (*Engine)(nil)
	_ engine.BlockProvider = (*Engine)(nil)
	_ engine.BlockReceiver = (*Engine)(nil)
	_ batch.BlockComputer  = (*computer)(nil)
	_ forwarder            = (*model.Model)(nil)
)

// Run is that of [batch.Engine]. It returns when the encoders have stopped too, if no other engine uses them.
func (e *Engine) Run(ctx context.Context) error {
	if e.cpu.encoders == nil {
		return e.Engine.Run(ctx)
	}
	return e.cpu.encoders.pool.runUser(func() error { return e.Engine.Run(ctx) })
}

// New loads or makes the model and reserves its cache. It starts nothing. Loading ends early, with ctx's
// error, when ctx does.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	replicas, err := NewReplicas(ctx, cfg, 1)
	if err != nil {
		return nil, err
	}
	return replicas[0], nil
}

// NewReplicas is New for count engines that share one copy of the weights; each
// has a cache of its own. If they would not fit, the error is a *MemoryError.
func NewReplicas(ctx context.Context, cfg Config, count int) ([]*Engine, error) {
	replicas, _, err := Open(ctx, cfg, count, 0)
	return replicas, err
}

// Open is NewReplicas with encoders besides, which share the weights too. Each of these has an embedding cache of
// its own.
func Open(ctx context.Context, cfg Config, engines, encoders int) (replicas []*Engine, encoding []*RowEncoder, err error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	n, err := openNetwork(ctx, &cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("tiny model %s: %w", cfg.Name, err)
	}
	shape := n.model.Config()
	if cfg.Blocks == 0 {
		cfg.Blocks = max(1, defaultCacheBytes/shape.BlockBytes(cfg.BlockSize))
	}
	embeddings := uint64(0)
	if n.encoders != nil {
		embeddings = uint64(encoders+min(engines, 1)) * uint64(*cfg.EmbeddingCache)
	}
	if err := checkMemory(&cfg, &shape, engines, embeddings); err != nil {
		return nil, nil, err
	}
	for range engines {
		e, err := newEngine(cfg, n)
		if err != nil {
			return nil, nil, err
		}
		replicas = append(replicas, e)
	}
	for range encoders {
		encoding = append(encoding, newRowEncoder(&cfg, n))
	}
	return replicas, encoding, nil
}

// network is a model with its checkpoint's settings for use.
type network struct {
	model            *model.Model
	eos, mask        []kv.Token
	vocab            *grammar.Vocab // of the tokens that may be sampled; nil if their texts are unknown
	encoders         *mediaEncoders // nil if the model is text-only
	defaults         engine.Sampling
	defaultMaxTokens int
}

// newEngine makes an engine around a network.
func newEngine(cfg Config, n *network) (*Engine, error) {
	shape := n.model.Config()
	if shape.VocabSize > sample.MaxVocab {
		return nil, fmt.Errorf("tiny model %s: vocabulary of %d tokens; at most %d are supported", cfg.Name, shape.VocabSize, sample.MaxVocab)
	}
	if err := batch.ValidateSampling(&n.defaults, -1, shape.VocabSize); err != nil {
		return nil, fmt.Errorf("tiny model %s: generation_config.json: %w", cfg.Name, err)
	}
	length := min(shape.MaxPositions, cfg.Blocks*cfg.BlockSize)
	if cfg.MaxContext > 0 {
		length = min(length, cfg.MaxContext)
	}
	if cfg.Text != nil && n.vocab == nil {
		n.vocab = newVocab(cfg.Text, n.mask, shape.VocabSize)
	}
	bc := batch.Config{
		Card:        newCard(&cfg, n, length),
		MaxSeqs:     cfg.MaxSeqs,
		TokenBudget: cfg.TokenBudget,
		MaxWaiting:  cfg.MaxWaiting,
		Reuse:       cfg.Reuse,
		Chunking:    cfg.Chunking,
	}
	cpu := &computer{
		card:     &bc.Card,
		mask:     n.mask,
		forward:  n.model,
		sampler:  sample.New(shape.VocabSize, n.mask),
		encoders: n.encoders,
		content:  newContent(&cfg),
		reuse:    cfg.Reuse,
		shown:    map[paged.SeqID]*shownMedia{},
	}
	if n.vocab != nil {
		cpu.grammars = newGrammarCache(n.vocab, cfg.Text)
	}
	shell, err := batch.New(bc, cpu)
	if err != nil {
		return nil, err
	}
	cpu.wake = shell.Wake
	cpu.cache = n.model.NewCache(cfg.Blocks, cfg.BlockSize)
	return &Engine{Engine: shell, cpu: cpu, hidden: shape.HiddenSize}, nil
}

// newCard returns the card of an engine or an encoder of a network.
func newCard(cfg *Config, n *network, context int) engine.Card {
	return engine.Card{
		Name:             cfg.Name,
		Aliases:          cfg.Aliases,
		Engine:           "tiny",
		BlockSize:        cfg.BlockSize,
		Blocks:           cfg.Blocks,
		Ranks:            1,
		ContextLength:    context,
		VocabSize:        n.model.Config().VocabSize,
		DefaultMaxTokens: n.defaultMaxTokens,
		EOS:              n.eos,
		Defaults:         n.defaults,
		Numerics:         describeNumerics(n),
		Encoder:          n.encoders.fingerprint(),
		StructuredOutput: n.vocab != nil,
		Media:            n.encoders.mediaKinds(),
		AcceptsObjects:   n.encoders != nil,
		Tokenizer:        cfg.Tokenizer,
		MaxBatchedTokens: cfg.TokenBudget,
	}
}

// describeNumerics names what the tokens depend on: the model's logits, the version of package sample's
// algorithm, the mask, and the version of package grammar's.
func describeNumerics(n *network) string {
	mask := xxh3.New()
	for _, t := range n.mask {
		mask.Write(binary.LittleEndian.AppendUint32(nil, uint32(t)))
	}
	name := fmt.Sprintf("%s-sample1-%08x", n.model.Numerics(), uint32(mask.Sum64()))
	if n.vocab != nil {
		name += "-guide1"
	}
	return name
}

// baseName is the name of a checkpoint's directory.
func baseName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs // "." gets a name too
	}
	return filepath.Base(dir)
}

// openNetwork returns the network that cfg names.
func openNetwork(ctx context.Context, cfg *Config) (*network, error) {
	if cfg.ModelPath == "" {
		return newBuiltinNetwork(ctx, cfg)
	}
	m, info, err := model.Load(ctx, cfg.ModelPath)
	if err != nil {
		return nil, err
	}
	encoders, err := openEncoders(cfg, m)
	if err != nil {
		return nil, err
	}
	return &network{
		encoders: encoders,
		model:    m,
		eos:      checkpoint.EndOfSequence(&info.Config.Facts, &info.Generation, m.Config().VocabSize),
		mask:     cfg.Mask,
		defaults: info.Generation.Sampling(),
	}, nil
}

// openEncoders returns the media encoders of a checkpoint's model, nil if it has none.
func openEncoders(cfg *Config, m *model.Model) (*mediaEncoders, error) {
	if m.Config().Vision == (model.Vision{}) {
		return nil, nil
	}
	p, err := checkpoint.ReadProcessors(cfg.ModelPath)
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
	return newMediaEncoders(cfg, m, f, patch.Colours(colours), p.Config, p.Preprocessor, p.Processor, p.VideoPreprocessor), nil
}

// MemoryError says that engines need more memory than Config.MemoryLimit.
type MemoryError struct {
	Model   string
	Engines int
	Blocks  int    // of each engine's cache
	Cache   uint64 // bytes of each engine's cache
	Weights uint64 // bytes, shared by all
	// Embeddings are the bytes of the embedding caches: one which the engines share, and that of each RowEncoder.
	Embeddings uint64
	Limit      uint64
	BlockSize  int
}

// Error gives both figures.
func (e *MemoryError) Error() string {
	const gib = 1 << 30
	need := float64(e.Weights) + float64(e.Embeddings) + float64(e.Engines)*float64(e.Cache) // it may overflow an integer
	return fmt.Sprintf("tiny model %s: %.1f GiB are needed and there are %.1f GiB of memory: %.1f GiB of weights, %.1f GiB of embedding cache and, %d times, %.1f GiB of cache for %d blocks of %d tokens",
		e.Model, need/gib, float64(e.Limit)/gib, float64(e.Weights)/gib, float64(e.Embeddings)/gib, e.Engines, float64(e.Cache)/gib, e.Blocks, e.BlockSize)
}

// checkMemory compares what count engines will reserve, and the embedding caches, with the limit. It ignores
// the memory of intermediate results, which is small compared to a cache.
func checkMemory(cfg *Config, shape *model.Config, count int, embeddings uint64) error {
	e := &MemoryError{
		Model: cfg.Name, Engines: count, Blocks: cfg.Blocks, BlockSize: cfg.BlockSize, Limit: cfg.MemoryLimit,
		Cache: uint64(cfg.Blocks) * uint64(shape.BlockBytes(cfg.BlockSize)), Weights: shape.WeightBytes(), Embeddings: embeddings,
	}
	over, all := bits.Mul64(e.Cache, uint64(count))
	shared := e.Weights + e.Embeddings
	if cfg.MemoryLimit == 0 || over == 0 && shared <= cfg.MemoryLimit && all <= cfg.MemoryLimit-shared {
		return nil
	}
	return e
}
