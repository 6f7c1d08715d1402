package prep

import (
	"context"

	"penstock/core/kv"
)

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
	EncodeChat(ctx context.Context, c *Chat) ([]kv.Token, error)
	// EncodeText returns the tokens of a text.
	EncodeText(ctx context.Context, text string, opts EncodeOptions) ([]kv.Token, error)
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
func (l Local) EncodeChat(ctx context.Context, c *Chat) ([]kv.Token, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return l.Pipeline.EncodeChat(nil, c)
}

// EncodeText implements [Encoder].
func (l Local) EncodeText(ctx context.Context, text string, opts EncodeOptions) ([]kv.Token, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return l.Pipeline.Tokenizer.Encode(nil, text, opts), nil
}
