package pixel

import (
	"bytes"
	"encoding/base64"
	"image/gif"
	"image/jpeg"

	"penstock/core/media"
)

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
