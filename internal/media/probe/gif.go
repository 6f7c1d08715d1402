package probe

import "encoding/binary"

// parseGIF reads the size of the logical screen and walks to the first image: an image larger than the
// screen enlarges it.
func (v *fileView) parseGIF(f *parsedHeader) error {
	b, ok := v.readAt(6, 7)
	if !ok {
		return errShort
	}
	width, height := int64(binary.LittleEndian.Uint16(b)), int64(binary.LittleEndian.Uint16(b[2:]))
	if width > 0 && height > 0 {
		f.setSize(width, height)
	}
	pos := 13 + colorTableLen(b[4])
	for {
		b, ok := v.readAt(pos, 1)
		if !ok {
			return errShort
		}
		switch b[0] {
		case ',':
			d, ok := v.readAt(pos+1, 8)
			if !ok {
				return errShort
			}
			right := int64(binary.LittleEndian.Uint16(d)) + int64(binary.LittleEndian.Uint16(d[4:]))
			bottom := int64(binary.LittleEndian.Uint16(d[2:])) + int64(binary.LittleEndian.Uint16(d[6:]))
			f.setSize(max(width, right), max(height, bottom))
			f.orientation = 1
			return nil
		case '!':
			if pos, ok = v.skipBlocks(pos + 2); !ok {
				return errShort
			}
		case ';':
			return newMalformed("there is no picture in it")
		default: // decoders skip it
			pos++
		}
	}
}

// colorTableLen returns the length of the color table which flags announce.
func colorTableLen(flags byte) int64 {
	if flags&0x80 == 0 {
		return 0
	}
	return 3 << (flags&7 + 1)
}

// skipBlocks skips length-prefixed blocks of data, up to an empty one.
func (v *fileView) skipBlocks(pos int64) (int64, bool) {
	for {
		b, ok := v.readAt(pos, 1)
		if !ok {
			return 0, false
		}
		pos += 1 + int64(b[0])
		if b[0] == 0 {
			return pos, true
		}
	}
}
