// Package pixel decodes the files of media objects to model inputs: pictures to rows of RGB, videos
// to such frames, sounds to samples.
//
// The same file yields the same bytes on every machine: decoding uses integer arithmetic, and
// resampling rounds at every step. The decoders are Go's, so the pixels of a JPEG can differ by one
// or two steps from the pixels of other libraries; keys derived from them (media.PixelsKey) are
// therefore specific to Penstock.
//
// Files are untrusted. Their headers are examined before anything is allocated, so a claimed size
// costs nothing, and allocations are bounded by [Limits]; [DecodeMemory] returns their size in
// advance.
package pixel

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"image/gif"
	"image/jpeg"

	"penstock/core/media"
)

// Errors for a file; returned errors wrap one of them. Their texts contain nothing of the file.
var (
	ErrMalformed   = errors.New("malformed")     // damaged, truncated, or not the expected type
	ErrUnsupported = errors.New("not supported") // a format, or a variant, which cannot be decoded here
	ErrTooLarge    = errors.New("too large")     // above the limits
)

// Limits bounds what is decoded. Zero fields have defaults; see EnsureDefaults.
type Limits struct {
	Bytes   int // of a file; default 64 MiB
	Pixels  int // of a picture, or of all frames of a video together; default 2^26
	Frames  int // of a video; default 1,024
	Samples int // of a sound, at 16 kHz; default one hour
}

// SampleRate is the sample rate of a decoded sound, in Hz.
const SampleRate = 16_000

// EnsureDefaults replaces zero values by their defaults.
func (l *Limits) EnsureDefaults() {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Bytes, 64 << 20}, {&l.Pixels, 1 << 26}, {&l.Frames, 1024}, {&l.Samples, 3600 * SampleRate}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
}

// MaxTensor returns how many bytes the tensor of an object within l may have.
func (l Limits) MaxTensor(kind media.Kind) int {
	l.EnsureDefaults()
	if kind == media.Audio {
		return 4 * l.Samples
	}
	return 3 * l.Pixels
}

// DecodeObject decodes a file of the given kind with [DecodeImage], [DecodeFrames] or
// [DecodeSamples].
func DecodeObject(kind media.Kind, file []byte, l Limits) (media.Tensor, media.Size, error) {
	switch kind {
	case media.Image:
		return DecodeImage(file, l)
	case media.Video:
		return DecodeFrames(file, l)
	case media.Audio:
		return DecodeSamples(file, l)
	}
	return media.Tensor{}, media.Size{}, fmt.Errorf("decode media of %v: %w", kind, ErrUnsupported)
}

// ContentKey returns the key of a decoded object, which depends on its content.
func ContentKey(kind media.Kind, t *media.Tensor) media.Key {
	const bytes, floats = 0, 1
	if kind == media.Audio {
		return media.PixelsKey(t.Shape, floats, t.Data)
	}
	return media.PixelsKey(t.Shape, bytes, t.Data)
}

// Check reports whether t has the shape of objects of a kind, with every dimension at least 1, and,
// if the elements are present, the right number of bytes.
func Check(kind media.Kind, t *media.Tensor) error {
	size, ok := tensorSize(kind, t.Shape)
	switch {
	case !ok:
		return fmt.Errorf("the tensor of %v has the shape %.100v: %w", kind, t.Shape, ErrMalformed)
	case t.Data != nil && int64(len(t.Data)) != size:
		return fmt.Errorf("the tensor of %v with the shape %v has %d bytes instead of %d: %w", kind, t.Shape, len(t.Data), size, ErrMalformed)
	}
	return nil
}

// tensorSize returns the size in bytes of a tensor of that shape; ok is false if the shape is
// invalid for the kind.
func tensorSize(kind media.Kind, shape []int) (bytes int64, ok bool) {
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

// maxTensor bounds a tensor in bytes, independent of the limits.
const maxTensor = 1 << 40

// checkSize checks the size of a picture or video, frames being 1 for a picture, before memory is
// allocated for it.
func (l *Limits) checkSize(width, height, frames int) error {
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

// maxSide bounds a side of a picture, as in the header probe. A TIFF file may have a separate strip
// for each row, which takes far longer than its pixels.
const maxSide = 65535

// checkBytes sets the defaults of l and checks a file's length.
func checkBytes(file []byte, l *Limits) error {
	l.EnsureDefaults()
	if len(file) > l.Bytes {
		return fmt.Errorf("a file of %d bytes, at most %d are decoded: %w", len(file), l.Bytes, ErrTooLarge)
	}
	return nil
}

// bytesPerPixel is the peak memory of decoding, in bytes per pixel of a picture. The maximum is a
// progressive JPEG of four channels: 4 bytes for a coefficient of each, the channels, their colors,
// and RGB.
const bytesPerPixel = 28

// DecodeMemory returns the peak memory of [DecodeObject] for a file, in bytes, including the
// tensor, according to the file's header. It is 0 for a file which DecodeObject rejects by its
// header, and never more than the limits allow.
func DecodeMemory(kind media.Kind, file []byte, l Limits) int64 {
	if checkBytes(file, &l) != nil {
		return 0
	}
	switch kind {
	case media.Image:
		return memoryOfImage(file, &l)
	case media.Video:
		if hasMagic(file, "GIF8?a") {
			return memoryOfGIF(file, &l)
		}
		return memoryOfJPEGs(file, &l)
	case media.Audio:
		if w, err := readWAV(file); err == nil && w.resampledCount() <= l.Samples {
			return 4 * int64(w.resampledCount())
		}
	}
	return 0
}

func memoryOfImage(file []byte, l *Limits) int64 {
	for _, c := range imageCodecs() {
		if !hasMagic(file, c.magic) {
			continue
		}
		cfg, err := c.config(bytes.NewReader(file))
		if err != nil || l.checkSize(cfg.Width, cfg.Height, 1) != nil {
			return 0
		}
		return bytesPerPixel * int64(cfg.Width) * int64(cfg.Height)
	}
	return 0
}

// memoryOfGIF counts one byte per pixel of each decoded frame, three of each rendered one, and two
// screens.
func memoryOfGIF(file []byte, l *Limits) int64 {
	cfg, err := gif.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return 0
	}
	count, _, err := scanGIF(file, l.Frames)
	if err != nil || l.checkSize(cfg.Width, cfg.Height, count) != nil {
		return 0
	}
	return int64(cfg.Width) * int64(cfg.Height) * (4*int64(count) + 6)
}

// memoryOfJPEGs counts the memory of decoding one frame, of all rendered frames, and of one frame's
// file.
func memoryOfJPEGs(payload []byte, l *Limits) int64 {
	text, _, _ := bytes.Cut(payload, []byte{','})
	cfg, err := jpeg.DecodeConfig(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(bytes.TrimSpace(text))))
	count := 1 + bytes.Count(payload, []byte{','})
	if err != nil || l.checkSize(cfg.Width, cfg.Height, count) != nil {
		return 0
	}
	return int64(cfg.Width)*int64(cfg.Height)*(bytesPerPixel+3*int64(count)) + int64(len(payload))
}
