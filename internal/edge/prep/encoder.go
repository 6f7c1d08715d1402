package prep

import (
	"context"

	"penstock/core/kv"
	"penstock/core/media"
)

// Prompt is what an engine is given to answer.
type Prompt struct {
	// Tokens are what the engine's cache sees: each media object's placeholder is replaced by
	// the tokens that its rows fill.
	Tokens []kv.Token
	// Media are the media objects that the prompt shows, by the tokens that hold
	// their places and the hash of their contents; nil if it shows none.
	Media []kv.Media
	// Objects are what the media are, one for each of Media if they were resolved in this process;
	// nil if there are none or an engine made the prompt.
	Objects []media.Object
	// TextOnly says why the prompt shows media that are not among Media: then Tokens has their
	// placeholders as the template wrote them, and only the text before the first is worth looking up.
	TextOnly media.Reason
}

// Encoder turns what a client sent into the tokens that the engine sees: [Local]
// in this process, or something that asks the engine, where a model's tokenizer
// or template cannot be had here. It may wait for others, so it takes a context
// and can fail. Implementations are safe for concurrent use.
//
// An error is a *fault.Error or that of ctx. Of a conversation that is not one
// it is Invalid, of a template that cannot render it Unimplemented, of an engine
// that does not answer Unavailable.
type Encoder interface {
	// EncodeChat returns the prompt of a conversation.
	EncodeChat(ctx context.Context, c *Chat) (Prompt, error)
	// EncodeText returns the prompt that a text is. It shows no media.
	EncodeText(ctx context.Context, text string, opts EncodeOptions) (Prompt, error)
}

// RawPrompt is how the prompt of a client that uses no template is encoded:
// special tokens in it are recognised, and those that the model expects around a
// text are added.
func RawPrompt() EncodeOptions { return EncodeOptions{ParseSpecial: true, AddSpecial: true} }

// Local encodes with a pipeline in this process. It never waits: of a context it
// only asks whether the work is still wanted.
type Local struct{ Pipeline *Pipeline }

var _ Encoder = Local{}

// EncodeChat implements [Encoder].
func (l Local) EncodeChat(ctx context.Context, c *Chat) (Prompt, error) {
	if err := ctx.Err(); err != nil {
		return Prompt{}, err
	}
	tokens, err := l.Pipeline.EncodeChat(nil, c)
	return Prompt{Tokens: tokens}, err
}

// EncodeText implements [Encoder].
func (l Local) EncodeText(ctx context.Context, text string, opts EncodeOptions) (Prompt, error) {
	if err := ctx.Err(); err != nil {
		return Prompt{}, err
	}
	return Prompt{Tokens: l.Pipeline.Tokenizer.Encode(nil, text, opts)}, nil
}
