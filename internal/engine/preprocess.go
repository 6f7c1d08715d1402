package engine

import (
	"context"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

// Preprocessor is an engine that has its model's tokenizer and chat template and makes prompts for processes
// that have not.
type Preprocessor interface {
	// Preprocess returns exactly the prompt that the engine would make of a text or a conversation:
	// generation from it gives the engine's answer to the text or conversation. It is a function of the
	// request (a template may also write the date) and generates nothing. The result belongs to the caller
	// and satisfies [Preprocessed.Validate].
	//
	// It may be called before Run, and need not wait for it. It returns ctx's error when ctx ends, or a
	// *fault.Error: Invalid, about the field of a chat request, if the template refuses the conversation;
	// Unimplemented if it cannot render it.
	Preprocess(ctx context.Context, req *PreprocessRequest) (*Preprocessed, error)
}

// PreprocessRequest is one attempt at making a prompt of a conversation or a text.
type PreprocessRequest struct {
	ID      string // client request id, the same for all attempts; "" if none
	Attempt uint32 // from 1; identifies late answers of an old attempt, which are dropped
	Model   string
	// Chat is a conversation as JSON, in the form of docs/format/engine.md; nil if the request is about Text.
	Chat []byte
	Text string
	// ParseSpecial recognizes special tokens in Text; AddSpecial adds the ones that the model expects around
	// a text. A chat template handles both itself.
	ParseSpecial, AddSpecial bool
	// Features also asks for the output of the engine's processor for the conversation's media.
	Features bool
	// ResolveMedia says that Chat names media which the engine is to resolve. Engines whose card says
	// ResolvesMedia take it.
	ResolveMedia bool
}

// Validate checks what every engine may rely on. It returns a *fault.Error of
// code Invalid that names the field, or nil.
func (r *PreprocessRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case len(r.Chat) > 0 && (r.Text != "" || r.ParseSpecial || r.AddSpecial):
		return fault.InvalidParam("messages", "a request to preprocess is about a conversation or about a text, not both")
	case r.ResolveMedia && len(r.Chat) == 0:
		return fault.InvalidParam("messages", "a text shows no media: send a conversation")
	}
	return nil
}

// MaxPreprocessed bounds the tokens, and MaxPreprocessedMedia the media objects, of a prompt that an engine
// makes for others: its encoding fits a frame of the request plane.
const (
	MaxPreprocessed      = 1 << 20
	MaxPreprocessedMedia = 1 << 10
)

// MaxFeatures bounds the processor's output for the media of a request, in bytes: together with the rest of
// the request it fits a call, to workers which cannot fetch it, and a frontend holds it while the request lasts. An
// engine with more output returns none, and the request is passed on as its client wrote it.
const MaxFeatures = 48 << 20

// maxFeaturesPiece bounds the features in one frame of an answer, in bytes.
const maxFeaturesPiece = 4 << 20

// Preprocessed is the answer to a PreprocessRequest.
type Preprocessed struct {
	Attempt uint32
	Tokens  []kv.Token
	// Media are the media ranges of the prompt, in the order of their first tokens; nil if it shows none.
	Media []kv.Media
	// Features is the output of the engine's processor for Media, to be sent as a Request's Features; nil if
	// the request did not ask for it, or if the engine has none or more than MaxFeatures.
	Features []byte
	// Objects identify the Media, in the same order, if the engine resolved them: only their kind, key,
	// identity and size are set, since the caller has the rest. nil otherwise.
	Objects []media.Object
	// TextOnly says why the engine did not resolve the media: then Tokens are the tokens before the first
	// medium, as far as its position is known, and TextOnlyError is the error for the client, which names the
	// part.
	TextOnly      media.Reason
	TextOnlyError *fault.Error
	// FailureKind says that the object which TextOnlyError names failed, and how; NotFailed if none did.
	FailureKind encode.FailureKind
}

// Validate checks what frontends rely on, for a model with vocabulary entries. The error is a *fault.Error:
// Invalid if the client's prompt is too large, Internal if the engine is at fault.
func (p *Preprocessed) Validate(vocabulary int) error {
	switch {
	case len(p.Tokens) > MaxPreprocessed:
		return fault.New(fault.Invalid, "the prompt has %d tokens, and engines hand over prompts of %d at most: shorten it", len(p.Tokens), MaxPreprocessed)
	case len(p.Media) > MaxPreprocessedMedia:
		return fault.New(fault.Invalid, "the prompt shows %d media objects, and engines hand over prompts with %d at most: send fewer", len(p.Media), MaxPreprocessedMedia)
	case len(p.Features) > MaxFeatures:
		return fault.New(fault.Internal, "%d bytes of processed media; at most %d are handed over", len(p.Features), MaxFeatures)
	}
	for i, t := range p.Tokens {
		if int64(t) >= int64(vocabulary) {
			return fault.New(fault.Internal, "token %d of the prompt is outside the vocabulary of %d entries", i, vocabulary)
		}
	}
	last := 0
	for i, m := range p.Media {
		if m.Start < last || m.End < m.Start || m.End > len(p.Tokens) {
			return fault.New(fault.Internal, "media object %d fills tokens %d to %d of a prompt of %d", i, m.Start, m.End, len(p.Tokens))
		}
		last = m.Start
	}
	return p.validateObjects()
}

// validateObjects checks TextOnly, TextOnlyError and Objects.
func (p *Preprocessed) validateObjects() error {
	switch {
	case !p.TextOnly.IsKnown() || (p.TextOnly == media.NoReason) != (p.TextOnlyError == nil):
		return fault.New(fault.Internal, "a prompt without its media, and no word of why")
	case p.TextOnly != media.NoReason && len(p.Media) > 0, len(p.Objects) > 0 && len(p.Objects) != len(p.Media):
		return fault.New(fault.Internal, "a prompt with %d of %d media", len(p.Objects), len(p.Media))
	}
	for i := range p.Objects {
		if o, m := &p.Objects[i], &p.Media[i]; o.Key.Hash != m.Hash || o.Key.Digest != m.Digest {
			return fault.New(fault.Internal, "media object %d is not the one that the prompt shows", i)
		}
	}
	return nil
}
