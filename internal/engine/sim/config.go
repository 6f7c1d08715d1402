package sim

import (
	"errors"
	"fmt"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// Config says what an engine pretends to be. Zero fields have defaults; see
// EnsureDefaults.
type Config struct {
	// Name is what clients call the model; "penstock-sim".
	Name    string
	Aliases []string
	// Tokenizer goes into the card; the built-in one.
	Tokenizer  engine.TokenizerRef
	Vocabulary Vocabulary
	// Media are the kinds of media that prompts may show, ascending: of each, the tokens that it
	// fills take the time that Timing says, and nobody looks at it.
	Media []string

	// Script says what is answered, Text the sentences of ScriptPassage. Without any
	// the tokens of the vocabulary stand for words.
	Script Script
	Text   Text
	// Output is the mean length in tokens of an answer to which the client set no
	// limit; it is between 1 and 2·Output-1. 0 is none: such an answer goes on to the
	// end of the context, as does any of a vocabulary without end of sequence.
	Output int

	BlockSize int // tokens per block; 16
	Blocks    int // of the KV cache, which takes memory as it fills; 65,536
	// ContextLength bounds prompt and answer; 262,144, or what the cache holds.
	ContextLength int
	MaxSeqs       int // sequences computed in one pass; 256
	TokenBudget   int // tokens computed in one pass; 8,192
	// MaxWaiting bounds the sequences beyond MaxSeqs that wait for their turn; 1,024.
	MaxWaiting int
	// Reuse off forgets blocks with their last sequence and reports no events,
	// Chunking off computes each prompt in one pass.
	Reuse, Chunking paged.Switch

	// Timing says how long a pass takes. Worker tells engines with the same Timing
	// apart, so that each has a jitter of its own.
	Timing Timing
	Worker uint64
	// MoE, if not zero, labels the blocks of cache events with experts.
	MoE MoE
	// Pool, if not nil, is memory that engines of this process share: As copies there what
	// it stores, and fetches from there what others did.
	Pool *SharedPool
	As   kv.Worker
	// Clock says by what the engine waits.
	Clock Clock
}

// Vocabulary is what an engine must know of the tokenizer that is used with it.
type Vocabulary struct {
	Size int // one more than the largest id
	// Mask are ids that have no text; only those in EOS are ever said.
	Mask []kv.Token
	EOS  []kv.Token // end a choice
}

// Script is what an engine answers.
type Script uint8

// The scripts. A choice goes by what the client sets: tokens that end it, and how long
// it must and may become.
const (
	// ScriptPassage is the sentences of a text, in an order that follows from the
	// prompt, and with a temperature from seed and choice.
	ScriptPassage Script = iota
	// ScriptEcho is the prompt, without tokens that have no text.
	ScriptEcho
)

// EnsureDefaults fills in fields that are zero.
func (c *Config) EnsureDefaults() {
	ensure := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	if c.Name == "" {
		c.Name = "penstock-sim"
	}
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

// Validate reports every problem at once. It judges c as it is, defaults filled in.
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
	report(c.MoE.valid(), "%d layers of %d experts in %d groups are no model; it has at least one layer and one expert, and not more groups than experts", c.MoE.Layers, c.MoE.Experts, c.MoE.Groups)
	report(c.Clock <= ClockPrecise, "clock %d is not known", c.Clock)
	report(c.MaxWaiting >= 1, "waiting sequences are limited to %d; it must be at least 1", c.MaxWaiting)
	return errors.Join(append(errs, c.Timing.Validate())...)
}
