// Package family counts the tokens that media fill in a prompt, and says which they
// are, as the processors of families of models do, from the size of the media and the
// configuration files of the checkpoint.
//
// A router that is to find a picture's blocks in an engine's cache must know exactly
// what the engine puts in the picture's place: one token more or less, and every block
// after it is another one. So nothing here is estimated. Each family's rules are those
// of its processor in the library transformers, held against it size by size (the table
// of docs/media-tokens.md says by how many and against which version); what is not known
// for certain is an error with a [media.Reason], upon which the text before the first
// object alone is looked for.
//
// The functions take a few operations on numbers of 64 bits, whatever the size: nothing
// is allocated but the runs of a layout, of which there are at most a few for each row
// of tiles or each pair of frames.
package family

import (
	"penstock/core/kv"
	"penstock/core/media"
)

// Files are the configuration files of a checkpoint, as JSON; nil for one that it does
// not have.
type Files struct {
	Config            []byte // config.json
	Preprocessor      []byte // preprocessor_config.json
	Processor         []byte // processor_config.json
	VideoPreprocessor []byte // video_preprocessor_config.json
}

// Vocabulary is what a family asks of the model's tokenizer. Its methods are called from
// as many goroutines at once as those of the family.
type Vocabulary interface {
	// ID returns the token that is written so, if there is one.
	ID(text string) (kv.Token, bool)
}

// Encoder is a [Vocabulary] that can encode text too, without the tokens that a
// tokenizer adds around a prompt. Families that put text around their media (times of
// frames, line breaks) need it; of others nothing is asked.
type Encoder interface {
	// Tokens returns the tokens of text.
	Tokens(text string) []kv.Token
}

// Family is how one model's prompts show media. It is immutable.
type Family struct {
	name    string
	mediums [media.Audio + 1]*medium // by kind; nil for what the model does not take
	without [media.Audio + 1]string  // why not, if it is not that the model has no such thing
	marks   []kv.Token
}

// medium is what a family knows of one kind of media.
type medium struct {
	placeholder kv.Token
	unmarked    bool // there is no placeholder that is a token
	pad         kv.Token
	turned      bool
	layout      func(size) (media.Layout, *SizeError)
}

// Name returns the family's name: the model_type of its configuration files, or the
// name by which the field knows it.
func (f *Family) Name() string { return f.name }

// of returns what is known of a kind, nil if nothing is.
func (f *Family) of(k media.Kind) *medium {
	if int(k) >= len(f.mediums) {
		return nil
	}
	return f.mediums[k]
}

// Takes reports whether the model takes media of that kind.
func (f *Family) Takes(k media.Kind) bool { return f.of(k) != nil }

// Placeholder returns the token that the chat template writes once for each object of
// that kind, and whether there is one: of some families objects can be counted, but what
// their templates write is no token, so that it cannot be found in a prompt.
func (f *Family) Placeholder(k media.Kind) (kv.Token, bool) {
	if m := f.of(k); m != nil && !m.unmarked {
		return m.placeholder, true
	}
	return 0, false
}

// Uncounted returns why objects of a kind cannot be found in a prompt, as a sentence without its full
// stop; "" if they can.
func (f *Family) Uncounted(k media.Kind) string {
	switch m := f.of(k); {
	case m == nil:
		return f.why(k)
	case m.unmarked:
		return "what stands for them in prompts of the family " + f.name + " is text and no token"
	}
	return ""
}

// Marks returns the placeholders of all kinds, ascending. The caller must not change it.
func (f *Family) Marks() []kv.Token { return f.marks }

// Pad returns the token that holds the rows of the encoder's output in a prompt: the one
// that engines' cache events have where the object is.
func (f *Family) Pad(k media.Kind) (kv.Token, bool) {
	if m := f.of(k); m != nil {
		return m.pad, true
	}
	return 0, false
}

// Turned reports whether a picture or video that is turned by a quarter can have another
// layout. Where it does, a size is of no use as long as it is not known which way up it is.
func (f *Family) Turned() bool {
	for _, m := range f.mediums {
		if m != nil && m.turned {
			return true
		}
	}
	return false
}

// The bounds of what is counted: beyond them a size is refused with media.OverLimit.
// They keep every product that becomes a float64 below 2^53, up to which it is exact.
const (
	maxSide    = 1 << 20
	maxFrames  = 1 << 20
	maxSamples = 1 << 30
	maxTokens  = media.MaxExpanded
)

// size is a media.Size to calculate with: products of sides are more than int holds where
// it has 32 bits.
type size struct {
	w, h, frames, samples int64
	rate                  float64
	sequence              bool
}

// Layout returns what stands in the prompt in place of the one placeholder of an object.
// Errors are of type [*SizeError].
func (f *Family) Layout(k media.Kind, s media.Size) (media.Layout, error) {
	m := f.of(k)
	if m == nil {
		return media.Layout{}, &SizeError{Kind: k, Reason: media.UnsupportedModel, Detail: f.why(k)}
	}
	if refused := bounds(k, s); refused != nil {
		return media.Layout{}, refused
	}
	l, refused := m.layout(size{w: int64(s.Width), h: int64(s.Height), frames: int64(s.Frames), samples: int64(s.Samples), rate: s.Rate, sequence: s.Sequence})
	if refused != nil {
		refused.Kind = k
		return media.Layout{}, refused
	}
	return l, nil
}

// why returns why the family has no media of a kind.
func (f *Family) why(k media.Kind) string {
	if int(k) < len(f.without) && f.without[k] != "" {
		return f.without[k]
	}
	return "models of the family " + f.name + " take none"
}

// bounds refuses sizes that no medium has, or that are not known.
func bounds(k media.Kind, s media.Size) *SizeError {
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

// alone returns the layout of n times the token t.
func alone(t kv.Token, n int64, grid [3]int64) (media.Layout, *SizeError) {
	if n > maxTokens {
		return media.Layout{}, tooMany()
	}
	return media.Layout{Runs: []media.Run{times(t, n)}, Pads: int(n), Grid: patches(grid)}, nil
}

// times is n times the token t, n being at most maxTokens.
func times(t kv.Token, n int64) media.Run { return media.Run{Token: t, Count: int(n)} }

// patches is a grid as layouts have it, none of its numbers being more than maxTokens
// times the patches of a token.
func patches(grid [3]int64) [3]int { return [3]int{int(grid[0]), int(grid[1]), int(grid[2])} }
