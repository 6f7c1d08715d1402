// Package media is the vocabulary of what prompts show besides text: images,
// videos and sounds, who they are, and which tokens hold their places.
//
// A media object has three forms on its way. As a client sends it, it is a part of
// a message with a URL. Resolved, it is an [Object]: it has a [Key], by which
// caches know it, and a size, from which a model's family (package family) tells
// its [Layout], the tokens in place of the one placeholder that the chat template
// wrote. In a prompt ([Expand]) it is a range of tokens, a kv.Media.
package media

import "strconv"

// Kind says what a media object is.
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
	// Identity is what Key was made of; "" if that is a name of the client's, or not said. Who fetches
	// the object again must check, where it can be, that it is the one of the key.
	Identity Identity
	// Part names the part of the request that shows it, for errors: "messages[0].content[1]".
	Part string
	// Source is where an engine can have it from: the URL as the client sent it, which may be a
	// data: URI; "" if only Tensor has it.
	Source string
	// Name is the client's own name of it (uuid), as it was sent; "" if none. Key has it already,
	// in the namespace of the request's salt.
	Name string
	// Size is what its tokens are counted from; zero if it is not known.
	Size Size
	// Tensor is the decoded object; zero if it was not decoded here.
	Tensor Tensor
}

// Size is how large a media object is, as a model sees it: after rotation by EXIF.
type Size struct {
	Width, Height int     // pixels; of images and videos
	Frames        int     // of videos
	Rate          float64 // frames a second; 0 if not known
	Sequence      bool    // of videos: pictures one after another, which have no rate
	Samples       int     // of sounds, at 16 kHz, one channel
}

// Tensor is a decoded media object: of an image [H, W, 3] bytes of RGB, of a video
// [F, H, W, 3], of a sound [S] little-endian float32 samples at 16 kHz.
type Tensor struct {
	Shape []int
	// Data are the elements, row by row, if they travel with the request. Segment is where they
	// are otherwise: a shared-memory segment of the same host, whose lease the sender holds.
	Data    []byte
	Segment string
}

// IsZero reports whether there is no tensor.
func (t *Tensor) IsZero() bool { return len(t.Shape) == 0 }
