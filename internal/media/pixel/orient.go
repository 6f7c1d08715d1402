package pixel

import (
	"encoding/binary"
	"hash/crc32"
)

// upright returns the picture as EXIF's orientation says it is to be seen: 2 to 4 are
// mirrored or turned half, 5 to 8 have their sides exchanged. p is used up.
func (p picture) upright(orientation int) picture {
	if orientation < 2 || orientation > 8 {
		return p
	}
	w, h := p.width, p.height
	if orientation >= 5 {
		w, h = h, w
	}
	q := newPicture(w, h)
	for y := range h {
		for x := range w {
			fx, fy := x, y // of the pixel to take
			switch orientation {
			case 2:
				fx = w - 1 - x
			case 3:
				fx, fy = w-1-x, h-1-y
			case 4:
				fy = h - 1 - y
			case 5:
				fx, fy = y, x
			case 6:
				fx, fy = y, w-1-x
			case 7:
				fx, fy = h-1-y, w-1-x
			case 8:
				fx, fy = h-1-y, x
			}
			copy(q.rgb[3*(y*w+x):][:3], p.rgb[3*(fy*p.width+fx):])
		}
	}
	return q
}

const (
	tagOrientation = 0x0112
	exifMark       = "Exif\x00\x00"
)

// orientationTIFF reads the orientation from the first directory of a TIFF file, which is
// what EXIF data is too.
func orientationTIFF(b []byte) int {
	var order binary.ByteOrder
	switch {
	case hasMagic(b, "II*\x00"):
		order = binary.LittleEndian
	case hasMagic(b, "MM\x00*"):
		order = binary.BigEndian
	default:
		return 0
	}
	if len(b) < 8 {
		return 0
	}
	at := uint64(order.Uint32(b[4:]))
	if at+2 > uint64(len(b)) {
		return 0
	}
	entries := b[at+2:]
	for range order.Uint16(b[at:]) {
		if len(entries) < 12 {
			return 0
		}
		const short = 3
		if order.Uint16(entries) == tagOrientation && order.Uint16(entries[2:]) == short && order.Uint32(entries[4:]) == 1 {
			return int(order.Uint16(entries[8:]))
		}
		entries = entries[12:]
	}
	return 0
}

// orientationJPEG looks for EXIF data in the segments before the picture.
func orientationJPEG(b []byte) int {
	const app1, scan, end = 0xe1, 0xda, 0xd9
	for at := 2; at+4 <= len(b); {
		if b[at] != 0xff {
			return 0
		}
		marker := b[at+1]
		if marker == 0xff { // filling
			at++
			continue
		}
		if marker == scan || marker == end {
			return 0
		}
		if marker == 1 || marker >= 0xd0 && marker <= 0xd8 { // without a length
			at += 2
			continue
		}
		n := int(binary.BigEndian.Uint16(b[at+2:]))
		if n < 2 || at+2+n > len(b) {
			return 0
		}
		if segment := b[at+4 : at+2+n]; marker == app1 && hasMagic(segment, exifMark) {
			return orientationTIFF(segment[len(exifMark):])
		}
		at += 2 + n
	}
	return 0
}

// orientationPNG looks for an eXIf chunk, before the picture or behind it.
func orientationPNG(b []byte) int {
	const signature, around = 8, 12 // length, name and checksum of a chunk
	for at := signature; at+around <= len(b); {
		n := uint64(binary.BigEndian.Uint32(b[at:]))
		if uint64(at)+around+n > uint64(len(b)) {
			return 0
		}
		end := at + 8 + int(n)
		if string(b[at+4:at+8]) == "eXIf" && crc32.ChecksumIEEE(b[at+4:end]) == binary.BigEndian.Uint32(b[end:]) {
			return orientationTIFF(b[at+8 : end])
		}
		at = end + 4
	}
	return 0
}

// orientationWebP looks for an EXIF chunk, which comes after the picture.
func orientationWebP(b []byte) int {
	for at := 12; at+8 <= len(b); {
		n := uint64(binary.LittleEndian.Uint32(b[at+4:]))
		if uint64(at)+8+n > uint64(len(b)) {
			return 0
		}
		body := b[at+8 : at+8+int(n)]
		if string(b[at:at+4]) == "EXIF" {
			if hasMagic(body, exifMark) { // some writers put it there too
				body = body[len(exifMark):]
			}
			return orientationTIFF(body)
		}
		at += 8 + int(n+n&1)
	}
	return 0
}
