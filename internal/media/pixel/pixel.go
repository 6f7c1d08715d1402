// Package pixel turns the files of media objects into what models are shown:
// pictures into rows of RGB, videos into such frames, sounds into samples.
//
// The same file gives the same bytes on every machine: what is decoded is integer
// arithmetic, and what is resampled is rounded step by step. The decoders are those
// of Go, so the pixels of a JPEG can differ by one or two steps from those of other
// libraries; keys made of them (media.PixelsKey) are therefore ours alone.
//
// Files come from outside. Their headers are looked at before anything is
// allocated, so that a size which is claimed costs nothing, and what is allocated
// is bounded by [Limits]; [Memory] says how much it is before.
package pixel

import (
	"errors"
	"fmt"

	"penstock/core/media"
)

// What is wrong with a file; errors wrap one of them. Their texts say what was found
// and hold nothing of the file.
var (
	ErrMalformed   = errors.New("malformed")     // it is damaged, cut off, or not what it should be
	ErrUnsupported = errors.New("not supported") // a format, or a kind of it, that cannot be decoded here
	ErrTooLarge    = errors.New("too large")     // above the limits
)

// Limits bound what is decoded. Zero fields have defaults; see EnsureDefaults.
type Limits struct {
	Bytes   int // of a file; 64 MiB
	Pixels  int // of a picture, or of all frames of a video together; 2^26
	Frames  int // of a video; 1,024
	Samples int // of a sound, at 16 kHz; an hour
}

// Rate is how many samples a second a decoded sound has.
const Rate = 16_000

// EnsureDefaults fills in fields that are zero.
func (l *Limits) EnsureDefaults() {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Bytes, 64 << 20}, {&l.Pixels, 1 << 26}, {&l.Frames, 1024}, {&l.Samples, 3600 * Rate}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
}

// Object decodes a file of the given kind: [Decode], [Frames] or [Samples].
func Object(kind media.Kind, file []byte, l Limits) (media.Tensor, media.Size, error) {
	switch kind {
	case media.Image:
		return Decode(file, l)
	case media.Video:
		return Frames(file, l)
	case media.Audio:
		return Samples(file, l)
	}
	return media.Tensor{}, media.Size{}, fmt.Errorf("decode media of %v: %w", kind, ErrUnsupported)
}

// Key returns the key of a decoded object by its content.
func Key(kind media.Kind, t *media.Tensor) media.Key {
	const bytes, floats = 0, 1
	if kind == media.Audio {
		return media.PixelsKey(t.Shape, floats, t.Data)
	}
	return media.PixelsKey(t.Shape, bytes, t.Data)
}

// Check reports whether t has the shape that objects of a kind have, with every
// dimension at least 1, and, if the elements are with it, as many bytes of them as that
// takes.
func Check(kind media.Kind, t *media.Tensor) error {
	size, ok := sizeOf(kind, t.Shape)
	switch {
	case !ok:
		return fmt.Errorf("the tensor of %v has the shape %.100v: %w", kind, t.Shape, ErrMalformed)
	case t.Data != nil && int64(len(t.Data)) != size:
		return fmt.Errorf("the tensor of %v with the shape %v has %d bytes instead of %d: %w", kind, t.Shape, len(t.Data), size, ErrMalformed)
	}
	return nil
}

// sizeOf returns how many bytes a tensor of that shape has, if objects of the kind have
// such.
func sizeOf(kind media.Kind, shape []int) (bytes int64, ok bool) {
	dims, bytes := map[media.Kind]int{media.Image: 3, media.Video: 4, media.Audio: 1}[kind], int64(1)
	if kind == media.Audio {
		bytes = 4
	}
	if dims == 0 || len(shape) != dims || dims > 1 && shape[dims-1] != 3 {
		return 0, false
	}
	for _, n := range shape {
		if n < 1 || int64(n) > maxTensor/bytes {
			return 0, false
		}
		bytes *= int64(n)
	}
	return bytes, true
}

// maxTensor bounds a tensor in bytes, whatever the limits.
const maxTensor = 1 << 40

// within checks a picture of a video of so many frames, or alone, before anything
// is allocated for it.
func (l *Limits) within(width, height, frames int) error {
	switch {
	case width < 1 || height < 1 || frames < 1:
		return fmt.Errorf("%d frames of %d by %d pixels: %w", frames, width, height, ErrMalformed)
	case width > maxSide || height > maxSide:
		return fmt.Errorf("%d by %d pixels, at most %d a side are decoded: %w", width, height, maxSide, ErrTooLarge)
	case frames > l.Frames:
		return fmt.Errorf("%d frames, at most %d are decoded: %w", frames, l.Frames, ErrTooLarge)
	case width > l.Pixels/height || width*height > l.Pixels/frames:
		return fmt.Errorf("%d frames of %d by %d pixels, at most %d pixels together are decoded: %w", frames, width, height, l.Pixels, ErrTooLarge)
	}
	return nil
}

// maxSide bounds a side of a picture, as it does where only its header is read. A TIFF file may have a
// strip of its own for each row, which takes far longer than its pixels do.
const maxSide = 65535

// checkBytes fills l in and checks a file's length.
func checkBytes(file []byte, l *Limits) error {
	l.EnsureDefaults()
	if len(file) > l.Bytes {
		return fmt.Errorf("a file of %d bytes, at most %d are decoded: %w", len(file), l.Bytes, ErrTooLarge)
	}
	return nil
}
