package remote

import (
	"penstock/core/kv"
	"penstock/internal/engine"
)

// Checkpoint is what the files of a model's checkpoint say of it, where they are at hand. The
// zero value is a model of which the engine alone has the tokenizer: it can only be passed
// clients' requests as they are.
type Checkpoint struct {
	// Tokenizer is where texts become tokens.
	Tokenizer engine.TokenizerRef
	VocabSize int
	// ContextLength is the longest that the model was made for, in tokens; 0 if the files do not
	// say. The engine may have room for less.
	ContextLength int
	EOS           []kv.Token
	Defaults      engine.Sampling
}

// None reports whether nothing is known.
func (c *Checkpoint) None() bool { return c.Tokenizer.Kind == "" || c.Tokenizer.Kind == "engine" }

// maxVocabulary is the size of a vocabulary of which nothing is known.
const maxVocabulary = 1<<31 - 1

// Describe fills in the fields of a card that are about the model. window is how many tokens
// the engine has room for, 0 if it does not say.
func (c *Checkpoint) Describe(card *engine.Card, window int) {
	card.Tokenizer, card.VocabSize, card.EOS, card.Defaults = c.Tokenizer, c.VocabSize, c.EOS, c.Defaults
	if c.None() {
		card.Tokenizer, card.VocabSize = engine.TokenizerRef{Kind: "engine"}, maxVocabulary
	}
	card.ContextLength = window
	if window <= 0 || c.ContextLength > 0 && c.ContextLength < window {
		card.ContextLength = c.ContextLength
	}
}
