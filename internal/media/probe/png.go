package probe

import (
	"bytes"
	"encoding/binary"
)

// parsePNG walks from chunk to chunk. The size is in the first chunk, or in the second one of images from
// Apple's tools for phones. The orientation may be anywhere up to the end, even after the pixels.
func (v *fileView) parsePNG(f *parsedHeader) error {
	pos := int64(len(pngMagic))
	packet := ByteRange{}
	for data := 0; ; {
		head, ok := v.readAt(pos, 8)
		if !ok {
			return errShort
		}
		length, kind := int64(binary.BigEndian.Uint32(head)), string(head[4:8])
		if length > 1<<31-1 {
			return newMalformed("a chunk of impossible length")
		}
		body, next := pos+8, pos+12+length
		if !f.sized && kind != "IHDR" && (kind != "CgBI" || pos != int64(len(pngMagic))) {
			return newMalformed("the first chunk is no header")
		}
		switch kind {
		case "IHDR":
			b, ok := v.readAt(body, 8)
			if !ok {
				return errShort
			}
			f.setSize(int64(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:])))
		case "eXIf":
			turn, broken, err := v.readEXIF(body, body+length)
			if err != nil || broken || turn != 0 {
				f.orientation = turn
				return err
			}
		case "iTXt":
			where, unknown, err := v.pngXMP(body, length)
			if err != nil || unknown {
				return err
			}
			if !where.IsZero() {
				packet = where
			}
		case "tEXt", "zTXt":
			// EXIF as text, which ImageMagick wrote before the eXIf chunk existed.
			if b, ok := v.readAt(body, int(min(length, 21))); !ok {
				return errShort
			} else if bytes.HasPrefix(b, []byte("Raw profile type exif")) || bytes.HasPrefix(b, []byte("Raw profile type APP1")) {
				return nil
			}
		case "IDAT":
			if data++; data == 2 && !v.whole {
				if v.total < 0 {
					return nil // its end may be anywhere
				}
				// Encoders cut the pixels into chunks of one length, except the last: the chunk at the
				// computed position is the last one, or the end. If it is neither, nothing is known.
				pos += max(1, (v.total-12-pos)/(length+12)) * (length + 12)
				head, ok := v.readAt(pos, 8)
				if !ok {
					return errShort
				}
				if kind := string(head[4:]); kind != "IDAT" && kind != "IEND" {
					return nil
				}
				continue
			}
		case "IEND":
			return v.pngOrientation(f, packet)
		}
		pos = next
	}
}

// pngXMP returns the range of the XMP packet in a text chunk, if it is one. unknown says that it is one and
// cannot be read.
func (v *fileView) pngXMP(body, length int64) (packet ByteRange, unknown bool, err error) {
	const key = "XML:com.adobe.xmp\x00"
	b, ok := v.readAt(body, int(min(length, int64(len(key))+1)))
	if !ok {
		return ByteRange{}, false, errShort
	}
	if !bytes.HasPrefix(b, []byte(key)) || len(b) == len(key) {
		return ByteRange{}, false, nil
	}
	return ByteRange{body, length}, b[len(key)] != 0 || length > maxPiece, nil
}

// pngOrientation determines the orientation after all chunks.
func (v *fileView) pngOrientation(f *parsedHeader, packet ByteRange) error {
	f.orientation = 1
	if packet.IsZero() {
		return nil
	}
	b, ok := v.readAt(packet.Offset, int(packet.Length))
	if !ok {
		f.orientation = 0
		return errShort
	}
	f.orientation = xmpOrientation(b)
	return nil
}

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
