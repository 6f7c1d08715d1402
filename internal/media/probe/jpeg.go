package probe

import (
	"bytes"
	"encoding/binary"
)

// The JPEG markers which the parser distinguishes.
const (
	markSOI  = 0xD8
	markEOI  = 0xD9
	markSOS  = 0xDA
	markAPP1 = 0xE1
	markTEM  = 0x01
	markRST0 = 0xD0
	markRST7 = 0xD7
)

const (
	exifID = "Exif\x00\x00"
	xmpID  = "http://ns.adobe.com/xap/1.0/\x00"
)

// isFrameMarker reports whether a marker starts a frame header of any coding: baseline to lossless, Huffman
// and arithmetic.
func isFrameMarker(m byte) bool { return m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC }

// parseJPEG walks from marker to marker up to the first scan. The orientation may come before or after the
// size.
func (v *fileView) parseJPEG(f *parsedHeader) error {
	pos := int64(2)
	packet := ByteRange{} // XMP, used only if EXIF has no orientation
	said, broken := false, false
	for {
		marker, at, ok := v.nextMarker(pos)
		switch {
		case !ok:
			return errShort
		case marker == markEOI:
			return newMalformed("it ends before its size is told")
		case marker == markTEM || marker == markSOI || marker >= markRST0 && marker <= markRST7:
			pos = at
			continue
		}
		n, ok := v.readU16(at, binary.BigEndian)
		if !ok {
			return errShort
		}
		if n < 2 {
			return newMalformed("a segment of no length")
		}
		body, end := at+2, at+int64(n)
		switch {
		case marker == markSOS:
			return v.jpegOrientation(f, packet, broken)
		case isFrameMarker(marker) && !f.sized:
			b, ok := v.readAt(body, 5) // precision, height, width
			if !ok {
				return errShort
			}
			height, width := binary.BigEndian.Uint16(b[1:]), binary.BigEndian.Uint16(b[3:])
			if height == 0 {
				return newUnsupported("the height is told after the picture")
			}
			f.setSize(int64(width), int64(height))
		case marker == markAPP1 && !said:
			b, ok := v.readAt(body, min(int(n)-2, len(xmpID)))
			if !ok {
				return errShort
			}
			switch {
			case bytes.HasPrefix(b, []byte(exifID)):
				turn, bad, err := v.readEXIF(body+int64(len(exifID)), end)
				if err != nil {
					return err
				}
				said, broken = true, bad
				f.orientation = turn
			case bytes.HasPrefix(b, []byte(xmpID)):
				packet = ByteRange{body, int64(n) - 2}
			}
		case marker == markAPP1: // XMP after EXIF
			if b, ok := v.readAt(body, min(int(n)-2, len(xmpID))); ok && string(b) == xmpID {
				packet = ByteRange{body, int64(n) - 2}
			} else if !ok {
				return errShort
			}
		}
		if f.sized && f.orientation != 0 {
			return nil
		}
		pos = end
	}
}

// jpegOrientation determines the orientation after all segments, if EXIF gave none.
func (v *fileView) jpegOrientation(f *parsedHeader, packet ByteRange, broken bool) error {
	switch {
	case !f.sized:
		return newMalformed("the picture begins before its size is told")
	case broken:
		return nil
	case packet.IsZero():
		f.orientation = 1
		return nil
	}
	b, ok := v.readAt(packet.Offset, int(packet.Length))
	if !ok {
		return errShort
	}
	f.orientation = xmpOrientation(b)
	return nil
}

// nextMarker returns the next marker at or after pos, and the offset of what follows. It skips other bytes,
// as decoders do.
func (v *fileView) nextMarker(pos int64) (byte, int64, bool) {
	for {
		if _, ok := v.readAt(pos, 2); !ok {
			return 0, 0, false
		}
		b := v.bytesFrom(pos)
		i := bytes.IndexByte(b, 0xFF)
		if i < 0 {
			pos += int64(len(b))
			continue
		}
		j := i + 1
		for j < len(b) && b[j] == 0xFF {
			j++
		}
		switch {
		case j == len(b): // it may be fill which continues
			pos += int64(j) - 1
		case b[j] == 0:
			pos += int64(j) + 1
		default:
			return b[j], pos + int64(j) + 1, true
		}
	}
}
