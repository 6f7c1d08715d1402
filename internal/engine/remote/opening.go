package remote

import (
	"context"
	"log/slog"

	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/internal/engine"
)

// Opening is what an adapter is opened with: which server, and what is known here of its model.
type Opening struct {
	Spec Spec
	// Tokenizer is where the model's tokenizer and template are. Kind "engine" is with the engine alone:
	// then requests are passed on, and the rest of what is known of the model is not needed.
	Tokenizer engine.TokenizerRef
	VocabSize int
	// ContextLength is that of the checkpoint, for engines that do not say theirs; 0 if unknown.
	ContextLength int
	EOS           []kv.Token
	Defaults      engine.Sampling
	// Media are the kinds of media that the model sees, where the settings say it; nil is to be found out.
	Media []string
	// Family is how the model's prompts show media; nil if that is not known.
	Family *family.Family
	// MediaKeys says how the engine is told the keys of media, where the settings do: as a card's, or MediaKeysOff.
	MediaKeys string
	// ProveSalts has it proven as soon as the engine runs that it keeps cache salts apart; else that is proven when the
	// first request under one comes.
	ProveSalts bool
	Log        *slog.Logger // nil is none
}

// UnknownVocabulary is the vocabulary of a model whose tokenizer is not here.
const UnknownVocabulary = 1<<31 - 1

// Prepare fills in what is zero, and reports everything that is wrong with the Spec.
func (o *Opening) Prepare() error {
	o.Spec.EnsureDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o.Spec.Validate()
}

// Existing returns those of the paths that the engine has and that take POST, in their order.
func (c *Client) Existing(ctx context.Context, paths ...string) ([]string, error) {
	var all []string
	for _, path := range paths {
		ok, err := c.exists(ctx, path)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, path)
		}
	}
	return all, nil
}
