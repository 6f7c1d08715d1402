package engine

import (
	"context"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

// Preprocessor is an engine that has its model's tokenizer and chat template and
// makes prompts for those who have not.
type Preprocessor interface {
	// Preprocess returns the prompt that the engine would make of a text or a
	// conversation, exactly: what is generated from it is what the engine would
	// answer to the text or the conversation itself. It is a function of the
	// request (a template may also write the date) and generates nothing. The
	// answer belongs to the caller and keeps to [Preprocessed.Validate].
	//
	// It may be called before Run, and need not wait for it. It returns ctx's error
	// when ctx ends, or a *fault.Error: Invalid, about the field of a chat request,
	// if the template refuses the conversation, Unimplemented if it cannot show it.
	Preprocess(ctx context.Context, req *PreprocessRequest) (*Preprocessed, error)
}

// PreprocessRequest is one attempt at making a prompt of a conversation or a text.
type PreprocessRequest struct {
	ID      string // of the client's request, the same for all attempts; "" if none
	Attempt uint32 // from 1; a late answer of an old attempt is dropped by it
	Model   string
	// Chat is a conversation as JSON, in the form that docs/format/engine.md has;
	// nil if the request is about Text.
	Chat []byte
	Text string
	// ParseSpecial recognises special tokens in Text, AddSpecial adds those that
	// the model expects around a text. A template has its own of both.
	ParseSpecial, AddSpecial bool
	// Features asks also for what the engine's processor makes of the conversation's media.
	Features bool
	// Shows says that Chat tells what it shows besides text, which the engine is to find out. Engines
	// whose card says Sights take it.
	Shows bool
}

// Validate checks what every engine may rely on. It returns a *fault.Error of
// code Invalid that names the field, or nil.
func (r *PreprocessRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.Param("attempt", "attempts are numbered from 1")
	case len(r.Chat) > 0 && (r.Text != "" || r.ParseSpecial || r.AddSpecial):
		return fault.Param("messages", "a request to preprocess is about a conversation or about a text, not both")
	case r.Shows && len(r.Chat) == 0:
		return fault.Param("messages", "a text shows no media: send a conversation")
	}
	return nil
}

// MaxPreprocessed bounds the tokens, and MaxPreprocessedMedia the media objects, of
// a prompt that an engine makes for others: its encoding fits a frame of the
// request plane.
const (
	MaxPreprocessed      = 1 << 20
	MaxPreprocessedMedia = 1 << 10
)

// MaxFeatures bounds what a processor made of the media of a request, in bytes: with all the rest of
// the request it fits a call. An engine that has more to say says that it has none.
const MaxFeatures = 48 << 20

// maxPiece bounds the features in one frame of an answer, in bytes.
const maxPiece = 4 << 20

// Preprocessed is the answer to a PreprocessRequest.
type Preprocessed struct {
	Attempt uint32
	Tokens  []kv.Token
	// Media are the media objects that the prompt shows, in the order of their
	// first tokens; nil if it shows none.
	Media []kv.Media
	// Features is what the engine's processor made of them, for a Request's; nil if nobody asked, or if
	// the engine has none to give, or more than MaxFeatures.
	Features []byte
	// Objects are what the Media are, in the same order, if the engine found that out: nothing but
	// their kind, key, identity and size, since whoever asked has the rest. nil otherwise.
	Objects []media.Object
	// TextOnly says why the engine did not find it out: then Tokens are those before the first of the media,
	// as far as it is known where that is, and Why tells the client, naming the part.
	TextOnly media.Reason
	Why      *fault.Error
}

// Validate checks what frontends rely on, for a model of so many vocabulary
// entries. The error is a *fault.Error: Invalid if the client's prompt is too large,
// Internal if the engine is at fault.
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

// validateObjects checks what was found out about the media.
func (p *Preprocessed) validateObjects() error {
	switch {
	case !p.TextOnly.Known() || (p.TextOnly == media.NoReason) != (p.Why == nil):
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
