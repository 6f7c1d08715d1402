// Package tiny is an engine that runs decoder transformers on the CPU: a real
// one, with paged KV cache, prefix reuse, continuous batching and chunked
// prefill, small enough to come with the binary.
//
// It serves a checkpoint directory or the built-in model, whose weights are made
// from a fixed seed: it talks nonsense, but deterministically, over a real
// vocabulary, at the cost of a real forward pass.
//
// # One loop
//
// [Engine.Run] is one goroutine that owns the scheduler, the cache, the sampler
// and the batch. Generate hands it requests through a bounded inbox and gets
// tokens back through an outbox of its own, so that nobody's sink holds up
// anybody's batch. A slow sink loses nothing and pauses nothing: what it has not
// taken yet is merged into one delta per choice. An outbox is bounded by the
// request's own token limit, and its sequence ends, and gives its blocks back, as
// soon as it would have with a fast sink.
//
// # Bit-identity
//
// The tokens of a request are a function of the request and of [engine.Card]'s
// Numerics alone: not of the batch around it, of how its prompt was cut into
// steps, of what came from the cache, nor of preemptions and earlier attempts.
//
// # Guides
//
// Where the texts of tokens are known, a request may have a guide. Its place in
// the schema is rebuilt from the text of what was generated before, so it is a
// function of the request too.
//
// # Embeddings
//
// An embedding is a sequence without sampling: its last hidden states are summed
// as they are computed, and it ends with its prompt. It does not take part in
// prefix reuse, in either direction: of a cached token there are K and V but no
// hidden state, and what it would leave in the cache nobody is known to ask for.
package tiny

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync"

	"penstock/core/guide"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/sample"

	"github.com/zeebo/xxh3"
)

// Engine is a CPU engine for one model. Create it with [New].
type Engine struct {
	cfg  Config
	card engine.Card
	mask []kv.Token
	// guides are the schemas in use; nil if the engine cannot guide.
	guides *guides

	scheduler paged.Config
	forward   forwarder
	hidden    int // size of a hidden state
	cache     *model.Cache
	watchers  hub
	// wake tells the loop that the inbox, the aborts or the watchers changed.
	wake chan struct{}

	mu struct {
		sync.Mutex
		phase  phase
		inbox  []*request // taken by the loop in order
		aborts []*request // to be released by the loop; at most the live ones
		// sequences are all choices not finished, the inbox's included; they are
		// what the queue bound counts.
		sequences int
		load      engine.Load // of the loop, without the inbox
	}
}

// forwarder computes one batch; a *model.Model does.
type forwarder interface {
	Forward(c *model.Cache, work []model.Work) error
}

// phase is where in its life an engine is.
type phase uint8

const (
	fresh phase = iota
	running
	stopped
)

// Compile-time guards.
var (
	_ engine.Engine     = (*Engine)(nil)
	_ engine.KVSource   = (*Engine)(nil)
	_ engine.LoadSource = (*Engine)(nil)
	_ engine.Embedder   = (*Engine)(nil)
	_ forwarder         = (*model.Model)(nil)
)

// New loads or makes the model and reserves its cache. It starts nothing. Loading
// ends early, with ctx's error, when ctx does.
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
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n, err := open(ctx, &cfg)
	if err != nil {
		return nil, fmt.Errorf("tiny model %s: %w", cfg.Name, err)
	}
	shape := n.model.Config()
	if cfg.Blocks == 0 {
		cfg.Blocks = max(1, defaultCacheBytes/shape.BlockBytes(cfg.BlockSize))
	}
	if err := checkMemory(&cfg, &shape, count); err != nil {
		return nil, err
	}
	replicas := make([]*Engine, count)
	for i := range replicas {
		if replicas[i], err = assemble(cfg, n); err != nil {
			return nil, err
		}
	}
	return replicas, nil
}

// network is a model with what its checkpoint says about its use.
type network struct {
	model            *model.Model
	eos, mask        []kv.Token
	vocab            *guide.Vocab // of the tokens that may be drawn; nil if their texts are not known
	defaults         engine.Sampling
	defaultMaxTokens int
}

// assemble makes an engine around a network.
func assemble(cfg Config, n *network) (*Engine, error) {
	shape := n.model.Config()
	if shape.VocabSize > sample.MaxVocab {
		return nil, fmt.Errorf("tiny model %s: vocabulary of %d tokens; at most %d are supported", cfg.Name, shape.VocabSize, sample.MaxVocab)
	}
	if err := sample.Validate(&n.defaults, -1, shape.VocabSize); err != nil {
		return nil, fmt.Errorf("tiny model %s: generation_config.json: %w", cfg.Name, err)
	}
	length := min(shape.MaxPositions, cfg.Blocks*cfg.BlockSize)
	if cfg.MaxContext > 0 {
		length = min(length, cfg.MaxContext)
	}
	if cfg.Text != nil && n.vocab == nil {
		n.vocab = newVocab(cfg.Text, n.mask, shape.VocabSize)
	}
	e := &Engine{
		cfg:  cfg,
		mask: n.mask,
		card: engine.Card{
			Name:             cfg.Name,
			Aliases:          cfg.Aliases,
			Engine:           "tiny",
			BlockSize:        cfg.BlockSize,
			Blocks:           cfg.Blocks,
			Ranks:            1,
			ContextLength:    length,
			VocabSize:        shape.VocabSize,
			DefaultMaxTokens: n.defaultMaxTokens,
			EOS:              n.eos,
			Defaults:         n.defaults,
			Numerics:         numerics(n),
			Guided:           n.vocab != nil,
			Tokenizer:        cfg.Tokenizer,
		},
		scheduler: paged.Config{
			Blocks:      cfg.Blocks,
			BlockSize:   cfg.BlockSize,
			MaxSeqs:     cfg.MaxSeqs,
			TokenBudget: cfg.TokenBudget,
			MaxContext:  length,
			// The engine's own bound on sequences is reached first.
			MaxWaiting: cfg.MaxSeqs + cfg.MaxWaiting,
			Reuse:      cfg.Reuse,
		},
		forward: n.model,
		hidden:  shape.HiddenSize,
		wake:    make(chan struct{}, 1),
	}
	if err := e.scheduler.Validate(); err != nil {
		return nil, fmt.Errorf("tiny model %s: %w", cfg.Name, err)
	}
	if n.vocab != nil {
		e.guides = newGuides(n.vocab, cfg.Text)
	}
	e.cache = n.model.NewCache(cfg.Blocks, cfg.BlockSize)
	e.watchers.limit = max(minBacklog, cfg.Blocks)
	e.mu.load.TotalBlocks = cfg.Blocks
	return e, nil
}

// numerics names what the tokens depend on: the model's logits, the version of
// what package sample makes of them, the mask, and the version of what package
// guide allows.
func numerics(n *network) string {
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

// Card describes the model served.
func (e *Engine) Card() engine.Card { return e.card }

// Load returns the engine's load, requests that the loop has not seen included.
// A request that Generate has returned for is not in it.
func (e *Engine) Load() engine.Load {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.mu.load
	for _, r := range e.mu.inbox {
		l.Waiting += len(r.open)
		l.PrefillTokens += len(r.req.Prompt)
	}
	return l
}

// poke makes the loop look at what was handed to it.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// baseName is the name of a checkpoint's directory.
func baseName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs // "." has a name too
	}
	return filepath.Base(dir)
}
