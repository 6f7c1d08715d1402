// Package media defines the non-text inputs of prompts: images, videos and sounds, their keys, and the
// tokens which stand for them.
//
// A media object has three forms. In a client's request it is a part of a message with a URL. Resolved, it
// is an [Object]: it has a [Key], by which caches identify it, and a size, from which the model's family
// (package family) computes its [Layout], the tokens in place of the one placeholder which the chat
// template wrote. In a prompt ([ExpandPrompt]) it is a range of tokens, a kv.Media.
package media

import "strconv"

// Kind is the type of a media object.
type Kind uint8

// The kinds. The zero value is none of them.
const (
	Image Kind = iota + 1
	Video
	Audio
)

// String returns the kind's name as settings, metrics and errors print it.
func (k Kind) String() string {
	switch k {
	case Image:
		return "image"
	case Video:
		return "video"
	case Audio:
		return "audio"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Object is one media object of a request.
type Object struct {
	Kind Kind
	Key  Key
	// Identity says what Key was made of; "" if it is a name of the client's, or unknown. A process which
	// fetches the object again must check, if possible, that the object matches the key.
	Identity Identity
	// Part names the part of the request with the object, for errors: "messages[0].content[1]".
	Part string
	// Source is where an engine can fetch it: the URL as the client sent it, which may be a data: URI; ""
	// if only Tensor has the object.
	Source string
	// Name is the client's name of the object (uuid), as sent; "" if none. Key already includes it, in the
	// namespace of the request's salt.
	Name string
	// Size determines the number of its tokens; zero if unknown.
	Size Size
	// Tensor is the decoded object; zero if it was not decoded here.
	Tensor Tensor
	// Rows is the object as an encoder has encoded it; nil if it has not been encoded.
	Rows *EncoderRows
}

// Size is the size of a media object as a model sees it: after rotation by EXIF.
type Size struct {
	Width, Height int     // pixels, for images and videos
	Frames        int     // for videos
	Rate          float64 // frames per second; 0 if unknown
	Sequence      bool    // for videos: a sequence of images, which has no rate
	Samples       int     // for sounds, at 16 kHz, one channel
}

// Tensor is a decoded media object: for an image [H, W, 3] bytes of RGB, for a video [F, H, W, 3], for a
// sound [S] little-endian float32 samples at 16 kHz.
type Tensor struct {
	Shape []int
	// Data holds the elements, row by row, if they are sent with the request. Otherwise Place says where a
	// process lends them for as long as the request lasts.
	Data  []byte
	Place string
}

// IsZero reports whether there is no tensor.
func (t *Tensor) IsZero() bool { return len(t.Shape) == 0 }

// Reason says why the media of a request do not take part in the choice of a worker, so that only the text
// before the first of them does.
type Reason string

// The reasons, as metrics, explanations and logs print them.
const (
	NoReason            Reason = ""
	UnsupportedModel    Reason = "unsupported_model"     // the model's family is unknown, or its configuration is incomplete
	ProcessorOverridden Reason = "processor_overridden"  // the request sets arguments of the processor
	DimensionsUnknown   Reason = "dims_unavailable"      // no header from which to read the size was available
	OrientationUnknown  Reason = "orientation_unknown"   // the size is known but not the orientation, and the family's token count depends on it
	SizeRefused         Reason = "size_refused"          // the model's processor takes no media of that shape or length; for an image it is an error to the client
	PlaceholderMismatch Reason = "placeholder_mismatch"  // the prompt does not match what was sent
	OverLimit           Reason = "over_limit"            // more or larger than the limits of this frontend
	HashForwardDisabled Reason = "hash_forward_disabled" // the engine cannot be sent the keys, and would use its own
	NotRouted           Reason = "not_routed"            // the router's mode uses no cache
	CountsDiffer        Reason = "counts_differ"         // an engine of the model makes other tokens of such media than are computed here
)

// IsKnown reports whether r is one of the reasons, or NoReason.
func (r Reason) IsKnown() bool {
	switch r {
	case NoReason, UnsupportedModel, ProcessorOverridden, DimensionsUnknown, OrientationUnknown, SizeRefused,
		PlaceholderMismatch, OverLimit, HashForwardDisabled, NotRouted, CountsDiffer:
		return true
	}
	return false
}
