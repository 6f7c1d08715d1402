// Package family computes the tokens which stand for media in a prompt, from the size of the media and the
// configuration files of the checkpoint, exactly as the processors of model families do.
//
// A router which looks for an image's blocks in an engine's cache must know exactly which tokens the engine
// puts in its place: one token more or less changes every block after it. So nothing here is estimated.
// Each family's rules are its processor's in the library transformers, compared size by size
// (docs/media-tokens.md gives the number of sizes and the version). What is not certain is an error with a
// [media.Reason]; then only the text before the first object is used for routing.
//
// The functions take a few 64-bit operations, whatever the size. They allocate only the runs of a layout,
// at most a few for each row of tiles or each pair of frames.
package family

import (
	"fmt"

	"penstock/core/kv"
	"penstock/core/media"
)

// CheckpointFiles are the configuration files of a checkpoint, as JSON; nil for a missing one.
type CheckpointFiles struct {
	Config            []byte // config.json
	Preprocessor      []byte // preprocessor_config.json
	Processor         []byte // processor_config.json
	VideoPreprocessor []byte // video_preprocessor_config.json
}

// Vocabulary is what a family needs of the model's tokenizer. Its methods must be safe for concurrent use,
// as the family's are.
type Vocabulary interface {
	// ID returns the token with this exact text, if there is one.
	ID(text string) (kv.Token, bool)
}

// Encoder is a [Vocabulary] which can also encode text, without the tokens which a tokenizer adds around a
// prompt. Only families which put text around their media (times of frames, line breaks) need it.
type Encoder interface {
	// Tokens returns the tokens of text.
	Tokens(text string) []kv.Token
}

// Family knows the media tokens of one model's prompts. It is immutable.
type Family struct {
	name         string
	rules        [media.Audio + 1]*mediaRules // by kind; nil for kinds which the model does not take
	whyMissing   [media.Audio + 1]string      // why a kind is not supported, if the model could take it
	placeholders []kv.Token
}

// mediaRules holds a family's rules for one kind of media.
type mediaRules struct {
	placeholder      kv.Token
	noPlaceholder    bool // no token is the placeholder
	numbered         NumberedText
	pad              kv.Token
	needsOrientation bool
	layout           func(mediaSize) (media.Layout, *SizeError)
}

// Name returns the family's name: the model_type of its configuration files, or its common name.
func (f *Family) Name() string { return f.name }

// rulesFor returns the rules for a kind, nil if there are none.
func (f *Family) rulesFor(k media.Kind) *mediaRules {
	if int(k) >= len(f.rules) {
		return nil
	}
	return f.rules[k]
}

// Supports reports whether the model takes media of that kind.
func (f *Family) Supports(k media.Kind) bool { return f.rulesFor(k) != nil }

// NumberedText is what stands for objects in the text of a prompt if that is no token but a numbered text: the k-th
// object of the prompt is Before, k, After. The zero value is none.
type NumberedText struct{ Before, After string }

// NumberedText returns the numbered text which stands for objects of a kind; false if a token does. The encoder of the
// text puts the kind's placeholder in its place, and encodes the texts between as prompts of their own.
func (f *Family) NumberedText(k media.Kind) (NumberedText, bool) {
	if m := f.rulesFor(k); m != nil {
		return m.numbered, m.numbered != NumberedText{}
	}
	return NumberedText{}, false
}

// Placeholder returns the token which the chat template writes once for each object of that kind, and
// whether there is one. The templates of some families write text instead of one token, so that their
// objects can be counted but not found in a prompt.
func (f *Family) Placeholder(k media.Kind) (kv.Token, bool) {
	if m := f.rulesFor(k); m != nil && !m.noPlaceholder {
		return m.placeholder, true
	}
	return 0, false
}

// WhyUncounted returns why objects of a kind cannot be found in a prompt, as a sentence without its full
// stop; "" if they can.
func (f *Family) WhyUncounted(k media.Kind) string {
	switch m := f.rulesFor(k); {
	case m == nil:
		return f.explainMissing(k)
	case m.noPlaceholder:
		return "what stands for them in prompts of the family " + f.name + " is text and no token"
	}
	return ""
}

// Placeholders returns the placeholders of all kinds, ascending. The caller must not change it.
func (f *Family) Placeholders() []kv.Token { return f.placeholders }

// PadToken returns the token which stands for the rows of the encoder's output in a prompt: engines' cache
// events have it in the object's place.
func (f *Family) PadToken(k media.Kind) (kv.Token, bool) {
	if m := f.rulesFor(k); m != nil {
		return m.pad, true
	}
	return 0, false
}

// NeedsOrientation reports whether a quarter turn can change the layout of an image or video. If so, a size
// without a known orientation is useless.
func (f *Family) NeedsOrientation() bool {
	for _, m := range f.rules {
		if m != nil && m.needsOrientation {
			return true
		}
	}
	return false
}

// The bounds of computable sizes: beyond them a size is refused with media.OverLimit. They keep every
// product which becomes a float64 below 2^53, up to which it is exact.
const (
	maxSide    = 1 << 20
	maxFrames  = 1 << 20
	maxSamples = 1 << 30
	maxTokens  = media.MaxExpanded
)

// mediaSize is a media.Size for computations: products of sides overflow a 32-bit int.
type mediaSize struct {
	w, h, frames, samples int64
	rate                  float64
	sequence              bool
}

// Layout returns the tokens in place of the one placeholder of an object. Errors are of type [*SizeError].
func (f *Family) Layout(k media.Kind, s media.Size) (media.Layout, error) {
	m := f.rulesFor(k)
	if m == nil {
		return media.Layout{}, &SizeError{Kind: k, Reason: media.UnsupportedModel, Detail: f.explainMissing(k)}
	}
	if refused := checkBounds(k, s); refused != nil {
		return media.Layout{}, refused
	}
	l, refused := m.layout(mediaSize{w: int64(s.Width), h: int64(s.Height), frames: int64(s.Frames), samples: int64(s.Samples), rate: s.Rate, sequence: s.Sequence})
	if refused != nil {
		refused.Kind = k
		return media.Layout{}, refused
	}
	return l, nil
}

// explainMissing returns why the family has no media of a kind.
func (f *Family) explainMissing(k media.Kind) string {
	if int(k) < len(f.whyMissing) && f.whyMissing[k] != "" {
		return f.whyMissing[k]
	}
	return "models of the family " + f.name + " take none"
}

// checkBounds refuses unknown or implausible sizes.
func checkBounds(k media.Kind, s media.Size) *SizeError {
	sides, known, within := true, true, true
	switch k {
	case media.Audio:
		sides, known, within = false, s.Samples > 0, s.Samples <= maxSamples
	case media.Video:
		known, within = s.Frames > 0 && s.Rate >= 0, s.Frames <= maxFrames
	}
	if sides {
		known = known && s.Width > 0 && s.Height > 0
		within = within && s.Width <= maxSide && s.Height <= maxSide
	}
	switch {
	case !known:
		return &SizeError{Kind: k, Reason: media.DimensionsUnknown, Detail: "the size is not known"}
	case !within:
		return &SizeError{Kind: k, Reason: media.OverLimit, Detail: "the size is beyond what is counted"}
	}
	return nil
}

// singleRunLayout returns the layout of n times the token t.
func singleRunLayout(t kv.Token, n int64, grid [3]int64) (media.Layout, *SizeError) {
	if n > maxTokens {
		return media.Layout{}, refuseTooMany()
	}
	return media.Layout{Runs: []media.TokenRun{newRun(t, n)}, PadCount: int(n), Grid: toGrid(grid)}, nil
}

// newRun returns n times the token t; n is at most maxTokens.
func newRun(t kv.Token, n int64) media.TokenRun { return media.TokenRun{Token: t, Count: int(n)} }

// toGrid converts a grid to the form of layouts. No number exceeds maxTokens times the patches of a token.
func toGrid(grid [3]int64) [3]int { return [3]int{int(grid[0]), int(grid[1]), int(grid[2])} }

// UnsupportedError says why a model's media tokens cannot be computed.
type UnsupportedError struct {
	Reason media.Reason
	Detail string // a sentence without its full stop
}

// Error implements error.
func (e *UnsupportedError) Error() string { return "media family: " + e.Detail }

func newUnsupported(format string, args ...any) *UnsupportedError {
	return &UnsupportedError{Reason: media.UnsupportedModel, Detail: fmt.Sprintf(format, args...)}
}

// SizeError says why the tokens of one object cannot be computed.
type SizeError struct {
	Kind   media.Kind
	Reason media.Reason
	Detail string // a sentence without its full stop
}

// Error implements error.
func (e *SizeError) Error() string { return e.Kind.String() + ": " + e.Detail }

// refuseSize returns the error for an object which a model's processor does not take.
func refuseSize(detail string) *SizeError {
	return &SizeError{Reason: media.SizeRefused, Detail: detail}
}

// refuseTooMany returns the error for an object too large for any prompt.
func refuseTooMany() *SizeError {
	return &SizeError{Reason: media.OverLimit, Detail: fmt.Sprintf("it would be more than %d tokens", maxTokens)}
}

// refuseThin returns the error of models which bound the ratio of the sides.
func refuseThin(w, h, ratio int64) *SizeError {
	return &SizeError{Reason: media.SizeRefused, Detail: fmt.Sprintf(
		"the model takes no pictures of which one side is more than %d times the other, and this one has %d by %d pixels", ratio, w, h)}
}
