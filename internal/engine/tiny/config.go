package tiny

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/core/paged"
	"penstock/internal/embregion"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/sample"
	"penstock/internal/media/pixel"
)

// Config configures which model an engine serves and with how much memory. Zero fields have defaults; see
// EnsureDefaults.
type Config struct {
	// Name is the model's name for clients. The default is "penstock-tiny" for the built-in model, else the
	// name of the checkpoint's directory.
	Name    string
	Aliases []string
	// ModelPath is the directory of a checkpoint: config.json and safetensors.
	// Empty is the built-in model.
	ModelPath string
	// Vocabulary is the built-in model's, which has no files to read it from. It is not used with ModelPath.
	Vocabulary Vocabulary
	// Layers is the number of layers of the built-in model; 4. Another number is another model, which tests of
	// many answers compute faster. It is not used with ModelPath.
	Layers int
	// Tokenizer goes into the card. The default is the built-in one, or the
	// files in ModelPath.
	Tokenizer engine.TokenizerRef
	// Text appends to dst the bytes of a token in decoded text; ok is false for a token without text, such as
	// a special token. It is called from several goroutines. It enables structured output; nil means that the
	// tokens' texts are unknown.
	Text func(dst []byte, t kv.Token) (out []byte, ok bool)
	// Mask are tokens that a checkpoint's model must not sample.
	Mask []kv.Token
	// Files and Fetch are the sources of media that do not travel with their requests; without them, only
	// decoded media in the request can be used. MediaLimits bound what is decoded.
	Files       Files
	Fetch       FetchFunc
	MediaLimits pixel.Limits
	// Remote has objects encoded by other workers, which an Engine asks before it encodes itself; nil is none. A
	// RowEncoder asks none.
	Remote RemoteEncoders
	// EmbeddingCache is the memory of the embedding cache in bytes, which all engines made together share, while
	// each RowEncoder has one of its own; nil is 64 MiB, 0 keeps nothing. URLTTL is how long a URL counts as showing the same, as frontends have it; 0
	// is for ever.
	EmbeddingCache *int
	URLTTL         time.Duration
	// Region makes what lets other workers of the host read an embedding cache, for each of them; nil, or what it returns
	// as nil, is for none. Shared reads the caches of others; nil reads none.
	Region func() *embregion.Owner
	Shared SharedRows
	// Encode bounds the encoders, of all engines made together and of each RowEncoder.
	Encode EncodeConfig
	// Tiers keep what the embedding caches evict, of all engines and encoders made together; nil is none.
	Tiers RowTiers

	BlockSize int // tokens per block; 16
	// Blocks is the capacity of the KV cache; by default as many as fit 128 MiB.
	// A cache smaller than the model's context shortens the context.
	Blocks int
	// MemoryLimit is how many bytes the weights and the caches of all engines made together may take; more is
	// a *MemoryError. 0 is no limit.
	MemoryLimit uint64
	// MaxContext shortens the model's context; 0 does not.
	MaxContext int
	MaxSeqs    int // sequences computed in one step; 32
	// TokenBudget is the number of tokens computed in one step; 256. Prefills are
	// cut to it, so it bounds how long a decoding sequence waits for its next token.
	TokenBudget int
	// MaxWaiting bounds the sequences beyond MaxSeqs that wait; 256. Requests that find the queue full are
	// Overloaded.
	MaxWaiting int
	// Chunking off computes each prompt in one step: nothing of it before its media are encoded. TokenBudget must hold
	// the longest sequence.
	Chunking paged.Switch
	// Reuse off evicts blocks with their last sequence and reports no events.
	Reuse paged.Switch
}

// Vocabulary is what the built-in model must know of the tokenizer used with it.
type Vocabulary struct {
	Size int // one more than the largest id
	// Mask are ids that are never sampled: those without text of their own.
	Mask []kv.Token
	EOS  []kv.Token // end a choice if they are sampled
	// Names finds the placeholder tokens of media, <|image|>, <|video|> and <|audio|>; nil makes a text-only
	// model.
	Names family.Vocabulary
}

// defaultCacheBytes is the memory of a cache whose Blocks are not given.
const defaultCacheBytes = 128 << 20

// defaultEmbeddingCache is the memory of an embedding cache whose size is not given.
const defaultEmbeddingCache = 64 << 20

// EnsureDefaults fills in fields that are zero. Blocks stays 0 until the model
// is known.
func (c *Config) EnsureDefaults() {
	ensure := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	ensure(&c.BlockSize, 16)
	ensure(&c.MaxSeqs, 32)
	ensure(&c.TokenBudget, 256)
	ensure(&c.MaxWaiting, 256)
	if c.ModelPath == "" {
		ensure(&c.Layers, builtinLayers)
	}
	c.Encode.ensureDefaults(c.MemoryLimit)
	if c.EmbeddingCache == nil {
		c.EmbeddingCache = new(defaultEmbeddingCache)
	}
	if c.Name == "" {
		c.Name = builtinName
		if c.ModelPath != "" {
			c.Name = baseName(c.ModelPath)
		}
	}
	if c.Tokenizer == (engine.TokenizerRef{}) {
		c.Tokenizer = engine.TokenizerRef{Kind: "builtin"}
		if c.ModelPath != "" {
			c.Tokenizer = engine.TokenizerRef{Kind: "dir", Dir: c.ModelPath}
		}
	}
}

// Validate reports every problem at once. It validates c with defaults already filled in.
func (c *Config) Validate() error {
	var errs []error
	report := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("tiny config: "+format, args...))
		}
	}
	report(c.Name != "", "name is empty")
	report(c.BlockSize >= 2 && c.BlockSize <= 1024, "block size is %d tokens; it must be between 2 and 1024", c.BlockSize)
	report(c.Blocks >= 0, "blocks is %d; it must be at least 1, or 0 for the default", c.Blocks)
	report(*c.EmbeddingCache >= 0 && c.URLTTL >= 0, "embedding cache of %d bytes, for URLs that last %v: neither may be negative", *c.EmbeddingCache, c.URLTTL)
	report(c.MaxContext == 0 || c.MaxContext >= 2, "context is limited to %d tokens; it must be at least 2, or 0 for the model's", c.MaxContext)
	report(c.MaxSeqs >= 1, "running sequences are limited to %d; it must be at least 1", c.MaxSeqs)
	report(c.TokenBudget >= c.MaxSeqs, "token budget of a step is %d; it must be at least the %d sequences that may run", c.TokenBudget, c.MaxSeqs)
	report(c.MaxWaiting >= 1, "waiting sequences are limited to %d; it must be at least 1", c.MaxWaiting)
	if err := c.Encode.validate(); err != nil {
		errs = append(errs, fmt.Errorf("tiny config: %w", err))
	}
	if c.ModelPath == "" {
		v := &c.Vocabulary
		report(c.Layers >= 1, "the built-in model has %d layers; it must have at least 1", c.Layers)
		report(v.Size >= 2 && v.Size <= sample.MaxVocab, "vocabulary of the built-in model has %d tokens; it must be between 2 and %d", v.Size, sample.MaxVocab)
		for _, t := range v.EOS {
			report(int(t) < v.Size, "end-of-sequence token %d is outside the vocabulary of %d", t, v.Size)
		}
	}
	return errors.Join(errs...)
}
