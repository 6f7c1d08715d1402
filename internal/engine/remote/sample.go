package remote

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"slices"
	"strings"

	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/media/probe"
)

// mediaSample is a media object for which the engine's token count is compared with Penstock's.
type mediaSample struct {
	name string // as in a sentence: "the engine makes … of NAME"
	kind media.Kind
	url  string // data: URI
}

// maxSampleTokens bounds the tokens of the largest picture, which the engine computes once per start.
const maxSampleTokens = 8192

// The video samples: numbers of frames, and their size in pixels. vLLM takes 32 pictures of a sequence; of
// the GIF at its rate 9 frames would be sampled, or 8 where an even number is needed.
const (
	sequenceFrames            = 40
	gifFrames, gifDelay       = 45, 10 // hundredths of a second
	sampleWidth, sampleHeight = 112, 84
	sampleRate                = 44100 // of sounds, in Hz
)

// mediaSamples returns samples which distinguish the ways of counting the media of a family, for the kinds
// that its model takes. A prompt may have context tokens. The samples are small files and the same on every
// machine.
func mediaSamples(f *family.Family, kinds []string, context int) []mediaSample {
	var all []mediaSample
	takes := func(k media.Kind) bool { return f.Supports(k) && slices.Contains(kinds, k.String()) }
	if takes(media.Image) {
		w, h := largestPicture(f, min(context/2, maxSampleTokens))
		all = append(all, pictureSample(w, h))
		if w > sampleWidth {
			all = append(all, pictureSample(sampleWidth, sampleHeight))
		}
	}
	if takes(media.Video) {
		all = append(all,
			mediaSample{fmt.Sprintf("a JPEG sequence of %d frames", sequenceFrames), media.Video, sequenceURI(sequenceFrames, sampleWidth, sampleHeight)},
			mediaSample{fmt.Sprintf("a GIF of %d frames at %d a second", gifFrames, 100/gifDelay), media.Video, gifURI(gifFrames, gifDelay)})
	}
	if takes(media.Audio) {
		all = append(all, mediaSample{"a sound of 44.1 kHz", media.Audio, dataURI("audio/wav", silentWAV(sampleRate, soundLength(f)))})
	}
	return all
}

// tokenPixels is the pixels per token of the families with the most tokens for a picture: 28 by 28.
const tokenPixels = 28 * 28

// largestPicture returns the sides of the largest picture that has at most most tokens, also where the engine
// does not shrink it as counted here.
func largestPicture(f *family.Family, most int) (w, h int) {
	for _, unit := range []int{896, 672, 448, 336, 224, 112} {
		if 12*unit*unit > most*tokenPixels {
			continue
		}
		if l, err := f.Layout(media.Image, media.Size{Width: 4 * unit, Height: 3 * unit}); err == nil && l.CountTokens() <= most {
			return 4 * unit, 3 * unit
		}
	}
	return sampleWidth, sampleHeight
}

// soundLength returns a length, in samples at sampleRate, whose conversion to the model's rate gives more
// tokens if rounded up than if rounded down, if there is one below three seconds.
func soundLength(f *family.Family) int {
	for n := sampleRate; n < 3*sampleRate; n++ {
		up, ok := probe.ModelSamples(int64(n), sampleRate)
		if !ok || n*probe.ModelRate%sampleRate == 0 {
			continue
		}
		more, err := f.Layout(media.Audio, media.Size{Samples: up})
		if err != nil {
			continue
		}
		if less, err := f.Layout(media.Audio, media.Size{Samples: up - 1}); err == nil && less.CountTokens() < more.CountTokens() {
			return n
		}
	}
	return sampleRate + 1
}

func pictureSample(w, h int) mediaSample {
	return mediaSample{fmt.Sprintf("a picture of %d by %d pixels", w, h), media.Image, pictureURI(w, h)}
}

// dataURI returns a file as a data: URI.
func dataURI(mime string, file []byte) string {
	return "data:" + mime + ";base64," + base64.StdEncoding.EncodeToString(file)
}

// grayImage returns a picture of one color.
func grayImage(w, h int) *image.Paletted {
	return image.NewPaletted(image.Rect(0, 0, w, h), color.Palette{color.Gray{Y: 0x7f}, color.White})
}

func pictureURI(w, h int) string {
	var b bytes.Buffer
	_ = png.Encode(&b, grayImage(w, h)) // writes to a buffer cannot fail
	return dataURI("image/png", b.Bytes())
}

func sequenceURI(frames, w, h int) string {
	var b bytes.Buffer
	_ = jpeg.Encode(&b, grayImage(w, h), nil) // writes to a buffer cannot fail
	frame := base64.StdEncoding.EncodeToString(b.Bytes())
	return "data:video/jpeg;base64," + strings.Repeat(frame+",", frames-1) + frame
}

func gifURI(frames, delay int) string {
	all := &gif.GIF{}
	for range frames {
		all.Image, all.Delay = append(all.Image, grayImage(sampleWidth, sampleHeight)), append(all.Delay, delay)
	}
	var b bytes.Buffer
	_ = gif.EncodeAll(&b, all) // writes to a buffer cannot fail
	return dataURI("video/gif", b.Bytes())
}

// silentWAV returns silence as a WAV file: 16 bits, one channel.
func silentWAV(rate, samples int) []byte {
	b := append([]byte("RIFF"), 0, 0, 0, 0)
	b = append(b, "WAVEfmt "...)
	for _, v := range []int{16, 1 | 1<<16, rate, 2 * rate, 2 | 16<<16} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	b = binary.LittleEndian.AppendUint32(append(b, "data"...), uint32(2*samples))
	b = append(b, make([]byte, 2*samples)...)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-8))
	return b
}
