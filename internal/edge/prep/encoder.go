package prep

import (
	"context"

	"penstock/core/fault"
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
	// Features is what the processor of the engine that made the prompt made of its media, for a
	// Request's; nil if nobody asked or it has none.
	Features []byte
	// TextOnly says why the conversation shows media that are not among Media: then Tokens are those
	// before the first of them, as far as it is known where that is. Why tells the client of it.
	TextOnly media.Reason
	Why      *fault.Error
	// Release, if not nil, frees what Objects and Features hold, once nobody needs them any more.
	Release func()
}

// Free calls Release if there is one.
func (p *Prompt) Free() {
	if p.Release != nil {
		p.Release()
	}
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

// Local encodes with a pipeline in this process. It never waits but for what Media does: of a
// context it only asks whether the work is still wanted.
type Local struct {
	Pipeline *Pipeline
	// Media, if not nil, finds out what media are.
	Media Resolver
}

var _ Encoder = Local{}

// EncodeChat implements [Encoder].
func (l Local) EncodeChat(ctx context.Context, c *Chat) (Prompt, error) {
	if err := ctx.Err(); err != nil {
		return Prompt{}, err
	}
	tokens, err := l.Pipeline.EncodeChat(nil, c)
	if err != nil {
		return Prompt{}, err
	}
	return l.Complete(ctx, c, tokens)
}

// EncodeText implements [Encoder].
func (l Local) EncodeText(ctx context.Context, text string, opts EncodeOptions) (Prompt, error) {
	if err := ctx.Err(); err != nil {
		return Prompt{}, err
	}
	tokens := l.Pipeline.Tokenizer.Encode(nil, text, opts)
	if l.Pipeline.Shows(tokens) >= 0 {
		return Prompt{}, fault.Param("prompt", "the prompt spells what stands for media in this model's prompts: send messages, with the media as parts of them")
	}
	return Prompt{Tokens: tokens}, nil
}
