package sim

import (
	"cmp"
	"errors"
	"fmt"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// Config describes the simulated engine. Zero fields have defaults; see EnsureDefaults.
type Config struct {
	// Name is the model's name for clients; default "penstock-sim".
	Name    string
	Aliases []string
	// Tokenizer is the card's; default is the built-in one.
	Tokenizer  engine.TokenizerRef
	Vocabulary Vocabulary
	// Media are the kinds of media that prompts may show, ascending: their tokens take the time that Timing
	// gives, and their content is ignored.
	Media []string

	// Script says how the engine answers, Text has the sentences of ScriptPassage. Without a Text the tokens
	// of the vocabulary serve as words.
	Script Script
	Text   Text
	// Output is the mean length in tokens of an answer if the client set no limit; the length is between 1
	// and 2·Output-1. 0 means no such length: the answer continues to the end of the context, as does every
	// answer with a vocabulary without EOS.
	Output int

	BlockSize int // tokens per block; 16
	Blocks    int // of the KV cache, which takes memory as it fills; 65,536
	// ContextLength bounds prompt plus answer; default 262,144, or the size of the cache.
	ContextLength int
	MaxSeqs       int // sequences computed in one pass; 256
	TokenBudget   int // tokens computed in one pass; 8,192
	// MaxWaiting bounds the waiting sequences in addition to MaxSeqs; 1,024.
	MaxWaiting int
	// Reuse off drops blocks with their last sequence and reports no events; Chunking off computes each
	// prompt in one pass.
	Reuse, Chunking paged.Switch

	// Timing says how long a pass takes. Worker distinguishes engines with the same Timing, so that each has
	// its own jitter.
	Timing Timing
	Worker uint64
	// EmbeddingCache is the size of the engine's embedding cache in bytes: what is in it takes no time to encode.
	// 0 keeps nothing.
	EmbeddingCache int
	// Encoders is the number of encoders beside the passes; 0 encodes in the passes.
	Encoders int
	// MediaFaults make the encoding of media fail.
	MediaFaults []MediaFault
	// MoE, if not zero, labels the blocks of cache events with experts.
	MoE MoE
	// Pool, if not nil, is memory shared by engines of this process: the engine copies the blocks that it
	// stores there as PoolWorker, and fetches blocks that others stored.
	Pool       *SharedPool
	PoolWorker kv.Worker
	// Clock says how the engine waits.
	Clock Clock
}

// Vocabulary is the engine's knowledge of the tokenizer used with it.
type Vocabulary struct {
	Size int // one more than the largest id
	// Mask are ids without text; only the ones in EOS are ever generated.
	Mask []kv.Token
	EOS  []kv.Token // end a choice
}

// Script says how an engine answers.
type Script uint8

// The scripts. A choice follows the client's limits: its stop tokens, and its least and greatest length.
const (
	// ScriptPassage answers with the sentences of a text, in an order that depends on the prompt and, with a
	// temperature, on seed and choice.
	ScriptPassage Script = iota
	// ScriptEcho answers with the prompt, without tokens that have no text.
	ScriptEcho
)

// EnsureDefaults sets the defaults of zero fields.
func (c *Config) EnsureDefaults() {
	ensure := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	c.Name = cmp.Or(c.Name, "penstock-sim")
	if c.Tokenizer == (engine.TokenizerRef{}) {
		c.Tokenizer = engine.TokenizerRef{Kind: "builtin"}
	}
	ensure(&c.BlockSize, 16)
	ensure(&c.Blocks, 65_536)
	ensure(&c.ContextLength, 262_144)
	ensure(&c.MaxSeqs, 256)
	ensure(&c.TokenBudget, 8192)
	ensure(&c.MaxWaiting, 1024)
	c.Timing.EnsureDefaults()
}

// Validate reports every problem at once. It expects the defaults to be set.
func (c *Config) Validate() error {
	var errs []error
	report := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("sim config: "+format, args...))
		}
	}
	report(c.Name != "", "name is empty")
	report(c.Vocabulary.Size >= 2, "vocabulary has %d tokens; it must have at least 2", c.Vocabulary.Size)
	inside := func(what string, tokens []kv.Token) {
		for _, t := range tokens {
			if int64(t) >= int64(c.Vocabulary.Size) {
				report(false, "%s has token %d, outside the vocabulary of %d", what, t, c.Vocabulary.Size)
				return
			}
		}
	}
	inside("end of sequence", c.Vocabulary.EOS)
	for i := range c.Text.First {
		inside("the text", c.Text.First[i])
		report(len(c.Text.First[i]) > 0, "sentence %d of the text is empty", i)
	}
	for i := range c.Text.Next {
		inside("the text", c.Text.Next[i])
		report(len(c.Text.Next[i]) > 0, "sentence %d of the text is empty", i)
	}
	report(len(c.Text.First) == len(c.Text.Next), "the text has %d sentences to begin with and %d to go on with", len(c.Text.First), len(c.Text.Next))
	report(c.Script <= ScriptEcho, "script %d is not known", c.Script)
	report(c.Output >= 0 && c.Output <= 1<<24, "the mean length of answers is %d; it must be between 0 and %d", c.Output, 1<<24)
	report(c.MoE.isValid(), "%d layers of %d experts in %d groups are no model; it has at least one layer and one expert, and not more groups than experts", c.MoE.Layers, c.MoE.Experts, c.MoE.Groups)
	report(c.EmbeddingCache >= 0, "the embedding cache has %d bytes; it must have at least 0", c.EmbeddingCache)
	report(c.Encoders >= 0 && c.Encoders <= MaxEncoders, "there are %d encoders; there must be 0 to %d", c.Encoders, MaxEncoders)
	report(c.Clock <= ClockPrecise, "clock %d is not known", c.Clock)
	report(c.MaxWaiting >= 1, "waiting sequences are limited to %d; it must be at least 1", c.MaxWaiting)
	return errors.Join(append(errs, c.Timing.Validate())...)
}
