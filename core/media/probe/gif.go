package probe

import "encoding/binary"

// gif reads the size of the screen, and walks to the first picture on it: one that is
// larger than the screen makes it larger.
func (v *view) gif(f *found) error {
	b, ok := v.at(6, 7)
	if !ok {
		return errShort
	}
	width, height := int64(binary.LittleEndian.Uint16(b)), int64(binary.LittleEndian.Uint16(b[2:]))
	if width > 0 && height > 0 {
		f.size(width, height)
	}
	pos := 13 + colours(b[4])
	for {
		b, ok := v.at(pos, 1)
		if !ok {
			return errShort
		}
		switch b[0] {
		case ',':
			d, ok := v.at(pos+1, 8)
			if !ok {
				return errShort
			}
			right := int64(binary.LittleEndian.Uint16(d)) + int64(binary.LittleEndian.Uint16(d[4:]))
			bottom := int64(binary.LittleEndian.Uint16(d[2:])) + int64(binary.LittleEndian.Uint16(d[6:]))
			f.size(max(width, right), max(height, bottom))
			f.turn = 1
			return nil
		case '!':
			if pos, ok = v.blocks(pos + 2); !ok {
				return errShort
			}
		case ';':
			return malformed("there is no picture in it")
		default: // decoders pass over it
			pos++
		}
	}
}

// colours returns the length of the table of colours that flags announce.
func colours(flags byte) int64 {
	if flags&0x80 == 0 {
		return 0
	}
	return 3 << (flags&7 + 1)
}

// blocks passes over blocks of data, each behind its length, up to one of none.
func (v *view) blocks(pos int64) (int64, bool) {
	for {
		b, ok := v.at(pos, 1)
		if !ok {
			return 0, false
		}
		pos += 1 + int64(b[0])
		if b[0] == 0 {
			return pos, true
		}
	}
}
