package pixel

import (
	"bytes"
	"encoding/base64"
	"image/gif"
	"image/jpeg"

	"penstock/core/media"
)

// What decoding takes, in bytes for each pixel of a picture: the most is a progressive JPEG of
// four channels, with 4 for a coefficient of each, the channels, their colours, and RGB.
const perPixel = 28

// Memory returns how many bytes [Object] takes at most while it decodes a file, its tensor among
// them, by what the file's header says. Of a file that Object refuses by its header it is 0, and of
// none more than the limits allow.
func Memory(kind media.Kind, file []byte, l Limits) int64 {
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
		if w, err := readWAV(file); err == nil && w.resampled() <= l.Samples {
			return 4 * int64(w.resampled())
		}
	}
	return 0
}

func memoryOfImage(file []byte, l *Limits) int64 {
	for _, c := range codecs() {
		if !hasMagic(file, c.magic) {
			continue
		}
		cfg, err := c.config(bytes.NewReader(file))
		if err != nil || l.within(cfg.Width, cfg.Height, 1) != nil {
			return 0
		}
		return perPixel * int64(cfg.Width) * int64(cfg.Height)
	}
	return 0
}

// memoryOfGIF is a byte for each pixel of each frame as the decoder has them, three as they are seen,
// and two screens.
func memoryOfGIF(file []byte, l *Limits) int64 {
	cfg, err := gif.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return 0
	}
	count, _, err := walkGIF(file, l.Frames)
	if err != nil || l.within(cfg.Width, cfg.Height, count) != nil {
		return 0
	}
	return int64(cfg.Width) * int64(cfg.Height) * (4*int64(count) + 6)
}

// memoryOfJPEGs is what the first frame takes, all as they are seen, and the file of one.
func memoryOfJPEGs(payload []byte, l *Limits) int64 {
	text, _, _ := bytes.Cut(payload, []byte{','})
	cfg, err := jpeg.DecodeConfig(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(bytes.TrimSpace(text))))
	count := 1 + bytes.Count(payload, []byte{','})
	if err != nil || l.within(cfg.Width, cfg.Height, count) != nil {
		return 0
	}
	return int64(cfg.Width)*int64(cfg.Height)*(perPixel+3*int64(count)) + int64(len(payload))
}
