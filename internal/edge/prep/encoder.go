package prep

import (
	"context"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

// Prompt is the input of an engine.
type Prompt struct {
	// Tokens are what the engine's cache sees: the tokens of its embedding rows replace each media object's
	// placeholder.
	Tokens []kv.Token
	// Media are the media objects in the prompt, with their token positions and content hashes; nil if there
	// are none.
	Media []kv.Media
	// Objects describe the media, one for each of Media, if they were resolved in this process; nil if there
	// are none or an engine made the prompt.
	Objects []media.Object
	// Features is the output of the media processor of the engine which made the prompt, for the Features of
	// a Request; nil if it was not asked for or the engine has no processor.
	Features []byte
	// TextOnlyReason says why the conversation has media which are missing from Media. Tokens are then the
	// ones before the first media object, as far as its position is known. TextOnlyError is the error for the
	// client.
	TextOnlyReason media.Reason
	TextOnlyError  *fault.Error
	// FailureKind says that the object which TextOnlyError names failed, and how; NotFailed if none did.
	FailureKind encode.FailureKind
	// Release, if not nil, frees what Objects and Features hold, once they are no longer used.
	Release func()
}

// Free calls Release if there is one.
func (p *Prompt) Free() {
	if p.Release != nil {
		p.Release()
	}
}

// Encoder turns a client's request into the tokens which the engine sees: [LocalEncoder] does so in this
// process, others ask the engine where the model's tokenizer or template is not available here. It may wait
// on the network, so it takes a context and can fail. Implementations are safe for concurrent use.
//
// An error is a *fault.Error or that of ctx: Invalid for an invalid conversation, Unimplemented for a
// template which cannot render it, Unavailable for an engine which does not answer. With a limit it may be a
// *LengthError.
type Encoder interface {
	// EncodeChat returns the prompt of a conversation.
	EncodeChat(ctx context.Context, c *Chat) (Prompt, error)
	// EncodeText returns the prompt of a plain text. It has no media.
	EncodeText(ctx context.Context, text string, opts EncodeOptions) (Prompt, error)
}

// RawPrompt returns the options for a prompt which uses no template: special tokens in it are recognised, and
// the ones which the model expects around a text are added.
func RawPrompt() EncodeOptions { return EncodeOptions{ParseSpecial: true, AddSpecial: true} }

// LocalEncoder encodes with a pipeline in this process. Only Media waits; otherwise the context is only
// checked for cancellation.
type LocalEncoder struct {
	Pipeline *Pipeline
	// Media, if not nil, resolves media.
	Media Resolver
}

var _ Encoder = LocalEncoder{}

// EncodeChat implements [Encoder].
func (l LocalEncoder) EncodeChat(ctx context.Context, c *Chat) (Prompt, error) {
	if err := ctx.Err(); err != nil {
		return Prompt{}, err
	}
	tokens, err := l.Pipeline.EncodeChat(nil, c)
	if err != nil {
		return Prompt{}, err
	}
	return l.CompletePrompt(ctx, c, tokens)
}

// EncodeText implements [Encoder].
func (l LocalEncoder) EncodeText(ctx context.Context, text string, opts EncodeOptions) (Prompt, error) {
	if err := ctx.Err(); err != nil {
		return Prompt{}, err
	}
	if err := checkLength(l.Pipeline.leastTokens(len(text)), opts.Limit); err != nil {
		return Prompt{}, err
	}
	tokens := l.Pipeline.Tokenizer.Encode(nil, text, opts)
	if err := checkLength(len(tokens), opts.Limit); err != nil {
		return Prompt{}, err
	}
	if l.Pipeline.IndexMediaToken(tokens) >= 0 {
		return Prompt{}, fault.InvalidParam("prompt", "the prompt spells what stands for media in this model's prompts: send messages, with the media as parts of them")
	}
	return Prompt{Tokens: tokens}, nil
}
