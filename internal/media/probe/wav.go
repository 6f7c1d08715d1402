package probe

import (
	"encoding/binary"
	"math"
)

// The supported sample codings of WAV files.
const (
	wavePCM        = 1
	waveFloat      = 3
	waveExtensible = 0xFFFE
)

// parseWAV walks to the chunk of samples. Its length gives their number, limited by the length of the file
// if known. If the length is absent, as from programs which write to a pipe, the samples extend to the end
// of the file.
func (v *fileView) parseWAV(f *parsedHeader) error {
	pos, block := int64(12), int64(0)
	for {
		head, ok := v.readAt(pos, 8)
		if !ok {
			return errShort
		}
		length := int64(binary.LittleEndian.Uint32(head[4:]))
		body := pos + 8
		switch string(head[:4]) {
		case "fmt ":
			if length < 16 {
				return newMalformed("the format has no room for its fields")
			}
			b, ok := v.readAt(body, int(min(length, 26)))
			if !ok {
				return errShort
			}
			n, err := parseWaveFormat(f, b)
			if err != nil {
				return err
			}
			block = n
		case "data":
			if block == 0 {
				return newMalformed("samples before their format")
			}
			if v.total >= 0 {
				length = min(length, max(v.total-body, 0))
			} else if length == math.MaxUint32 {
				return newUnsupported("the number of samples is not told")
			}
			if length < block {
				return newMalformed("there are no samples")
			}
			f.frames, f.sized = length/block, true
			return nil
		}
		pos = body + roundUpEven(length)
	}
}

// parseWaveFormat parses the description of the samples, and returns the bytes per frame of all channels.
func parseWaveFormat(f *parsedHeader, b []byte) (int64, error) {
	coding := binary.LittleEndian.Uint16(b)
	channels, rate := binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:])
	bits := binary.LittleEndian.Uint16(b[14:])
	if coding == waveExtensible && len(b) == 26 {
		coding = binary.LittleEndian.Uint16(b[24:])
	}
	switch {
	case coding == wavePCM && (bits == 8 || bits == 16 || bits == 24 || bits == 32):
	case coding == waveFloat && bits == 32:
	default:
		return 0, newUnsupported("samples of a coding that is not read: send 8 to 32 bit PCM or 32 bit float")
	}
	if channels == 0 || channels > 64 || rate == 0 || rate > 1<<20 {
		return 0, newMalformed("an impossible number of channels or rate")
	}
	f.rate, f.channels = int(rate), int(channels)
	return int64(channels) * int64(bits/8), nil
}
