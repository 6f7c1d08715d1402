package probe

import "encoding/binary"

// parseBMP parses the header of Windows and OS/2 bitmaps. A negative height means rows from top to bottom.
func (v *fileView) parseBMP(f *parsedHeader) error {
	size, ok := v.readU32(14, binary.LittleEndian)
	if !ok {
		return errShort
	}
	switch size {
	case 12: // OS/2 1.x
		b, ok := v.readAt(18, 4)
		if !ok {
			return errShort
		}
		f.setSize(int64(binary.LittleEndian.Uint16(b)), int64(binary.LittleEndian.Uint16(b[2:])))
	case 16, 40, 52, 56, 64, 108, 124:
		b, ok := v.readAt(18, 8)
		if !ok {
			return errShort
		}
		width, height := int64(int32(binary.LittleEndian.Uint32(b))), int64(int32(binary.LittleEndian.Uint32(b[4:])))
		f.setSize(width, max(height, -height))
	default:
		return newUnsupported("a header of unknown length")
	}
	f.orientation = 1
	return nil
}
