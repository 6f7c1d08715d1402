package pixel

import (
	"encoding/binary"
	"fmt"
	"math"

	"penstock/core/media"
)

// DecodeSamples decodes a sound: WAV with PCM of 8, 16, 24 or 32 bits, or float32, of any rate and
// number of channels. The tensor is [S] little-endian float32 at 16 kHz from -1 to 1, the mean of
// the channels; other rates are interpolated linearly, to the sound's length rounded up to whole
// samples. Other formats are ErrUnsupported.
func DecodeSamples(file []byte, l Limits) (media.Tensor, media.Size, error) {
	if err := checkBytes(file, &l); err != nil {
		return media.Tensor{}, media.Size{}, err
	}
	w, err := readWAV(file)
	if err != nil {
		return media.Tensor{}, media.Size{}, fmt.Errorf("decode audio: %w", err)
	}
	n := w.resampledCount()
	switch {
	case n < 1:
		return media.Tensor{}, media.Size{}, fmt.Errorf("decode audio: no samples: %w", ErrMalformed)
	case n > l.Samples:
		return media.Tensor{}, media.Size{}, fmt.Errorf("decode audio: %d samples at 16 kHz, at most %d are decoded: %w", n, l.Samples, ErrTooLarge)
	}
	data := make([]byte, 0, 4*n)
	for i := range n {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(w.resampleAt(i)))
	}
	return media.Tensor{Shape: []int{n}, Data: data}, media.Size{Samples: n}, nil
}

// wavSound is a sound in a WAV file.
type wavSound struct {
	rate, channels int
	width          int // bytes of a sample of one channel
	float          bool
	data           []byte
}

func (w *wavSound) frameCount() int { return len(w.data) / (w.width * w.channels) }

// resampledCount returns the number of samples at 16 kHz, rounded up as in the resamplers of
// engines.
func (w *wavSound) resampledCount() int {
	return int((int64(w.frameCount())*SampleRate + int64(w.rate) - 1) / int64(w.rate)) // rate is at least minRate
}

// resampleAt returns sample i at 16 kHz.
func (w *wavSound) resampleAt(i int) float32 {
	exact := int64(i) * int64(w.rate)
	at, rest := int(exact/SampleRate), exact%SampleRate
	low := w.frameMean(at)
	if rest == 0 || at+1 >= w.frameCount() {
		return float32(low)
	}
	share := float64(rest) / SampleRate
	return float32(low + float64(share*(w.frameMean(at+1)-low)))
}

// frameMean returns the mean of the channels of frame i of the file.
func (w *wavSound) frameMean(i int) float64 {
	var sum float64
	from := w.data[i*w.width*w.channels:]
	for c := range w.channels {
		sum += w.decodeSample(from[c*w.width:])
	}
	return sum / float64(w.channels)
}

func (w *wavSound) decodeSample(b []byte) float64 {
	switch {
	case w.float:
		v := float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
		if v != v {
			return 0
		}
		return max(-1, min(1, v))
	case w.width == 1:
		return (float64(b[0]) - 128) / 128
	case w.width == 2:
		return float64(int16(binary.LittleEndian.Uint16(b))) / (1 << 15)
	case w.width == 3:
		return float64(int32(uint32(b[0])<<8|uint32(b[1])<<16|uint32(b[2])<<24)) / (1 << 31)
	}
	return float64(int32(binary.LittleEndian.Uint32(b))) / (1 << 31)
}

const maxChannels = 64

// Bounds of the sample rate, in Hz. At one sample per second, a few bytes would be hours.
const minRate, maxRate = 1000, 1 << 24

// readWAV finds the two relevant chunks: fmt, then data. A data chunk which claims more than there
// is, as stream recorders write it, is truncated to what there is.
func readWAV(file []byte) (w wavSound, err error) {
	if !hasMagic(file, "RIFF????WAVE") {
		return w, fmt.Errorf("not a WAV file: %w", ErrUnsupported)
	}
	known := false
	for rest := file[12:]; len(rest) >= 8; {
		name, n := string(rest[:4]), uint64(binary.LittleEndian.Uint32(rest[4:]))
		rest = rest[8:]
		body := rest[:min(n, uint64(len(rest)))]
		switch {
		case name == "fmt " && !known:
			if err := w.parseFormat(body); err != nil {
				return w, err
			}
			known = true
		case name == "data" && known:
			w.data = body
			return w, nil
		case name == "data":
			return w, fmt.Errorf("samples before their format: %w", ErrMalformed)
		}
		rest = rest[min(n+n&1, uint64(len(rest))):]
	}
	return w, fmt.Errorf("no samples: %w", ErrMalformed)
}

// parseFormat parses the fmt chunk.
func (w *wavSound) parseFormat(b []byte) error {
	const pcm, float, extensible = 1, 3, 0xfffe
	if len(b) < 16 {
		return fmt.Errorf("a format of %d bytes: %w", len(b), ErrMalformed)
	}
	code := binary.LittleEndian.Uint16(b)
	if code == extensible {
		if len(b) < 26 {
			return fmt.Errorf("a format of %d bytes: %w", len(b), ErrMalformed)
		}
		code = binary.LittleEndian.Uint16(b[24:])
	}
	bits := int(binary.LittleEndian.Uint16(b[14:]))
	w.channels, w.rate = int(binary.LittleEndian.Uint16(b[2:])), int(binary.LittleEndian.Uint32(b[4:]))
	w.width, w.float = bits/8, code == float
	switch {
	case w.channels < 1 || w.channels > maxChannels || w.rate < minRate || w.rate > maxRate:
		return fmt.Errorf("%d channels at %d Hz: %w", w.channels, w.rate, ErrMalformed)
	case code == pcm && (bits == 8 || bits == 16 || bits == 24 || bits == 32), code == float && bits == 32:
		return nil
	}
	return fmt.Errorf("samples of form %d with %d bits: %w", code, bits, ErrUnsupported)
}
