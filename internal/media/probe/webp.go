package probe

import (
	"bytes"
	"encoding/binary"
)

// The flags of an extended WebP file.
const (
	webpEXIF = 0x08
	webpXMP  = 0x04
)

// parseWebP parses the three kinds of WebP: lossy, lossless, and extended. The extended kind has a canvas
// with its own size, and may give the orientation after the pixels.
func (v *fileView) parseWebP(f *parsedHeader) error {
	head, ok := v.readAt(12, 13) // for the shortest kind
	if !ok {
		return errShort
	}
	kind := string(head[:4])
	if kind != "VP8L" {
		if head, ok = v.readAt(12, 18); !ok {
			return errShort
		}
	}
	b := head[8:]
	switch kind {
	case "VP8 ":
		if b[0]&1 != 0 || !bytes.Equal(b[3:6], []byte{0x9D, 0x01, 0x2A}) {
			return newMalformed("it does not begin with a whole picture")
		}
		f.setSize(int64(binary.LittleEndian.Uint16(b[6:])&0x3FFF), int64(binary.LittleEndian.Uint16(b[8:])&0x3FFF))
		f.orientation = 1
	case "VP8L":
		if b[0] != 0x2F {
			return newMalformed("a lossless picture without its signature")
		}
		bits := binary.LittleEndian.Uint32(b[1:])
		f.setSize(int64(bits&0x3FFF)+1, int64(bits>>14&0x3FFF)+1)
		f.orientation = 1
	case "VP8X":
		f.setSize(parseU24(b[4:])+1, parseU24(b[7:])+1)
		return v.webpOrientation(f, b[0], 20+roundUpEven(int64(binary.LittleEndian.Uint32(head[4:]))))
	default:
		return newMalformed("the first chunk is no picture")
	}
	return nil
}

// webpOrientation walks over the chunks after the canvas, to EXIF and XMP as far as flags announce them.
func (v *fileView) webpOrientation(f *parsedHeader, flags byte, pos int64) error {
	if flags&(webpEXIF|webpXMP) == 0 {
		f.orientation = 1
		return nil
	}
	riff, ok := v.readU32(4, binary.LittleEndian)
	if !ok {
		return errShort
	}
	end, packet := 8+roundUpEven(int64(riff)), ByteRange{}
	for wanted := flags & (webpEXIF | webpXMP); wanted != 0 && pos+8 <= end; {
		head, ok := v.readAt(pos, 8)
		if !ok {
			return errShort
		}
		length := int64(binary.LittleEndian.Uint32(head[4:]))
		body := pos + 8
		switch string(head[:4]) {
		case "EXIF":
			wanted &^= webpEXIF
			base := body
			if b, ok := v.readAt(body, int(min(length, int64(len(exifID))))); !ok {
				return errShort
			} else if string(b) == exifID { // some encoders write it
				base += int64(len(exifID))
			}
			turn, broken, err := v.readEXIF(base, body+length)
			if err != nil || broken || turn != 0 {
				f.orientation = turn
				return err
			}
		case "XMP ":
			wanted &^= webpXMP
			packet = ByteRange{body, length}
		}
		pos = body + roundUpEven(length)
	}
	if packet.IsZero() {
		f.orientation = 1
		return nil
	}
	if packet.Length > maxPiece {
		return nil
	}
	b, ok := v.readAt(packet.Offset, int(packet.Length))
	if !ok {
		return errShort
	}
	f.orientation = xmpOrientation(b)
	return nil
}

// roundUpEven rounds n up to an even number: chunks of odd length are padded.
func roundUpEven(n int64) int64 { return n + n&1 }

func parseU24(b []byte) int64 { return int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16 }
