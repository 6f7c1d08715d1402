package remote

import (
	"context"
	"log/slog"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/engine"
)

// OpenConfig configures the opening of an adapter: the server, and what is known of its model.
type OpenConfig struct {
	Spec Spec
	// Tokenizer locates the model's tokenizer and template. With Kind "engine" only the engine has them: then
	// requests are passed through, and the other facts about the model are not needed.
	Tokenizer engine.TokenizerRef
	VocabSize int
	// ContextLength is that of the checkpoint, for engines that do not report theirs; 0 if unknown.
	ContextLength int
	EOS           []kv.Token
	Defaults      engine.Sampling
	// Media are the kinds of media that the model takes according to the settings; nil means to find them
	// out.
	Media []string
	// Family says how the model's prompts show media; nil if unknown.
	Family *family.Family
	// NoFamilyReason says why Family is nil, as a sentence without its full stop; "" if there is nothing to
	// report.
	NoFamilyReason string
	// EnginePrompts says that frontends let engines make their prompts, so that nothing is counted here.
	EnginePrompts bool
	// MediaKeys says how the engine is sent the keys of media according to the settings: as in a card, or
	// MediaKeysOff.
	MediaKeys string
	// ProveSalts starts the proof that the engine isolates cache salts as soon as the engine runs; else the
	// first request with a salt starts it.
	ProveSalts bool
	// ProcessorArgs are the arguments with which the engine calls its media processor according to the
	// settings: a JSON object; "" if not set.
	ProcessorArgs string
	// LocalPrompt makes the prompt of a conversation as frontends do, see MediaCounting; nil leaves the
	// engine's counts unchecked.
	LocalPrompt func(ctx context.Context, kind media.Kind, url string) (MediaPrompt, error)
	Log         *slog.Logger // nil discards
}

// UnknownVocabulary is the vocabulary size of a model whose tokenizer is unknown here.
const UnknownVocabulary = 1<<31 - 1

// Prepare sets defaults, and reports every problem of the Spec.
func (o *OpenConfig) Prepare() error {
	o.Spec.EnsureDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o.Spec.Validate()
}

// ExistingPaths returns the paths that the engine has and that take POST, in their order.
func (c *Client) ExistingPaths(ctx context.Context, paths ...string) ([]string, error) {
	var all []string
	for _, path := range paths {
		ok, err := c.hasPath(ctx, path)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, path)
		}
	}
	return all, nil
}
