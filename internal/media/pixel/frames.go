package pixel

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"strings"

	"penstock/core/media"
)

// DecodeFrames decodes a video: a GIF, all its frames as rendered, or JPEG files in base64
// separated by commas, which is the payload of a data: URI of type video/jpeg. The tensor is [F, H,
// W, 3]; JPEG frames of different sizes are rejected. Other containers are ErrUnsupported.
func DecodeFrames(file []byte, l Limits) (media.Tensor, media.Size, error) {
	if err := checkBytes(file, &l); err != nil {
		return media.Tensor{}, media.Size{}, err
	}
	read := decodeJPEGFrames
	if hasMagic(file, "GIF8?a") {
		read = decodeGIFFrames
	}
	v, err := read(file, &l)
	if err != nil {
		return media.Tensor{}, media.Size{}, fmt.Errorf("decode video: %w", err)
	}
	n := len(v.rgb) / (3 * v.width * v.height)
	return media.Tensor{Shape: []int{n, v.height, v.width, 3}, Data: v.rgb},
		media.Size{Width: v.width, Height: v.height, Frames: n, Rate: v.rate, Sequence: v.sequence}, nil
}

// videoFrames is a sequence of frames of one size.
type videoFrames struct {
	width, height int
	rgb           []byte
	rate          float64
	sequence      bool // of JPEG files
}

// ParseFramesURI returns the payload of a data: URI with JPEG frames in base64, for [DecodeFrames].
func ParseFramesURI(uri string) (payload string, ok bool) {
	const scheme = "data:video/jpeg;base64,"
	if len(uri) < len(scheme) || !strings.EqualFold(uri[:len(scheme)], scheme) {
		return "", false
	}
	return uri[len(scheme):], true
}

// jpegStart is the base64 of the first three bytes of a JPEG.
const jpegStart = "/9j/"

func decodeJPEGFrames(payload []byte, l *Limits) (v videoFrames, err error) {
	if !bytes.HasPrefix(bytes.TrimSpace(payload), []byte(jpegStart)) {
		return v, fmt.Errorf("neither a GIF nor JPEG frames in base64: %w", ErrUnsupported)
	}
	count := 1 + bytes.Count(payload, []byte{','})
	if count > l.Frames {
		return v, fmt.Errorf("%d frames, at most %d are decoded: %w", count, l.Frames, ErrTooLarge)
	}
	v.sequence = true
	left := *l
	var file []byte
	for i, rest, more := 0, payload, true; more; i++ {
		var text []byte
		text, rest, more = bytes.Cut(rest, []byte{','})
		text = bytes.TrimSpace(text)
		file = append(file[:0], make([]byte, base64.StdEncoding.DecodedLen(len(text)))...)
		n, err := base64.StdEncoding.Decode(file, text)
		if err != nil || !hasMagic(file[:n], "\xff\xd8\xff") {
			return v, fmt.Errorf("frame %d is not a JPEG in base64: %w", i, ErrMalformed)
		}
		p, err := decodeRGB(file[:n], &left)
		switch {
		case i > 0 && errors.Is(err, ErrTooLarge):
			return v, fmt.Errorf("frame %d is larger than the first one of %d by %d pixels: %w", i, v.width, v.height, ErrTooLarge)
		case err != nil:
			return v, fmt.Errorf("frame %d: %w", i, err)
		case i == 0:
			v.width, v.height = p.width, p.height
			if err := l.checkSize(v.width, v.height, count); err != nil {
				return v, err
			}
			v.rgb = make([]byte, 0, len(p.rgb)*count) // at once: DecodeMemory counts no growth
		case p.width != v.width || p.height != v.height:
			return v, fmt.Errorf("frame %d has %d by %d pixels, the first one %d by %d: %w", i, p.width, p.height, v.width, v.height, ErrMalformed)
		}
		v.rgb = append(v.rgb, p.rgb...)
		left.Pixels = v.width * v.height // for each further frame; the sum was checked
	}
	return v, nil
}

// decodeGIFFrames renders a GIF: each frame is drawn over the result of the previous one.
func decodeGIFFrames(file []byte, l *Limits) (v videoFrames, err error) {
	defer func() { // see codec.read
		if r := recover(); r != nil {
			err = fmt.Errorf("GIF: the decoder gave up: %w", ErrMalformed)
		}
	}()
	cfg, err := gif.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return v, fmt.Errorf("GIF: %w", decoderError(err))
	}
	// Each frame is decoded to at most as many bytes as the screen has pixels.
	count, rate, err := scanGIF(file, l.Frames)
	if err == nil {
		err = l.checkSize(cfg.Width, cfg.Height, count)
	}
	if err != nil {
		return v, fmt.Errorf("GIF: %w", err)
	}
	all, err := gif.DecodeAll(bytes.NewReader(file))
	if err != nil {
		return v, fmt.Errorf("GIF: %w", decoderError(err))
	}
	screen := newRGBImage(cfg.Width, cfg.Height)
	v.width, v.height, v.rate = cfg.Width, cfg.Height, rate
	v.rgb = make([]byte, 0, len(screen.rgb)*len(all.Image))
	for i, frame := range all.Image {
		before := screen
		if all.Disposal[i] == gif.DisposalPrevious {
			before.rgb = bytes.Clone(screen.rgb)
		}
		drawFrame(&screen, frame)
		v.rgb = append(v.rgb, screen.rgb...)
		switch all.Disposal[i] {
		case gif.DisposalPrevious:
			screen = before
		case gif.DisposalBackground:
			clearRect(&screen, frame.Bounds())
		}
	}
	return v, nil
}

// drawFrame draws the pixels of a frame that are not transparent.
func drawFrame(p *rgbImage, frame *image.Paletted) {
	r := frame.Bounds().Intersect(image.Rect(0, 0, p.width, p.height))
	for y := r.Min.Y; y < r.Max.Y; y++ {
		dst := p.rowFrom(r.Min.X, y)
		for i, index := range frame.Pix[frame.PixOffset(r.Min.X, y):][:r.Dx()] {
			if int(index) < len(frame.Palette) {
				if _, _, _, alpha := frame.Palette[index].RGBA(); alpha == 0 {
					continue
				}
			}
			dst[3*i], dst[3*i+1], dst[3*i+2] = paletteColor(frame.Palette, index)
		}
	}
}

// clearRect makes a part of the picture black.
func clearRect(p *rgbImage, r image.Rectangle) {
	r = r.Intersect(image.Rect(0, 0, p.width, p.height))
	for y := r.Min.Y; y < r.Max.Y; y++ {
		clear(p.rowFrom(r.Min.X, y)[:3*r.Dx()])
	}
}

// scanGIF counts the frames of a GIF by its blocks, without decoding, and returns its frame rate;
// it stops above limit.
func scanGIF(file []byte, limit int) (count int, rate float64, err error) {
	const header, extension, frame, trailer = 13, 0x21, 0x2c, 0x3b
	cut := fmt.Errorf("the file is cut off: %w", ErrMalformed)
	if len(file) < header {
		return 0, 0, cut
	}
	var t gifTiming
	for at := header + colorTableSize(file[10]); at < len(file); {
		switch file[at] {
		case trailer:
			return count, t.frameRate(count), nil
		case extension:
			t.addControl(file[at:])
			at += 2
		case frame:
			if at+10 > len(file) {
				return 0, 0, cut
			}
			if count++; count > limit {
				return count, 0, nil
			}
			at += 10 + colorTableSize(file[at+9]) + 1 // and the code size
		default:
			return 0, 0, fmt.Errorf("a block of unknown type: %w", ErrMalformed)
		}
		for { // sub-blocks, up to an empty one
			if at >= len(file) {
				return 0, 0, cut
			}
			n := int(file[at])
			at += 1 + n
			if n == 0 {
				break
			}
		}
	}
	return 0, 0, cut
}

// gifTiming accumulates the display times of a GIF's frames as FFmpeg does (libavformat/gifdec.c),
// and with it OpenCV and the engines.
type gifTiming struct{ controls, hundredths int }

// addControl adds the delay of an extension if that is a graphic control. Without a delay a frame
// is shown for a tenth of a second.
func (t *gifTiming) addControl(extension []byte) {
	const label, size, noDelay = 0xf9, 4, 10
	if len(extension) < 3+size || extension[1] != label || extension[2] != size {
		return
	}
	t.controls++
	if delay := int(binary.LittleEndian.Uint16(extension[4:])); delay > 0 {
		t.hundredths += delay
	} else {
		t.hundredths += noDelay
	}
}

// frameRate returns the frames per second according to the mean delay in whole hundredths. It is 0,
// unknown, if a frame has no control.
func (t *gifTiming) frameRate(frames int) float64 {
	if frames == 0 || t.controls < frames {
		return 0
	}
	return 100 / float64(t.hundredths/frames)
}

// colorTableSize returns the size of a color table in bytes, according to its flags.
func colorTableSize(flags byte) int {
	if flags&0x80 == 0 {
		return 0
	}
	return 3 << (flags&7 + 1)
}
