package probe

import (
	"bytes"
	"encoding/binary"
)

// pngMagic is the start of a PNG file.
const pngMagic = "\x89PNG\r\n\x1a\n"

// sniffFormat returns the format by the file's first bytes.
func (v *fileView) sniffFormat() (FileFormat, bool) {
	b, ok := v.readAt(0, 16)
	if !ok {
		return v.sniffShort()
	}
	switch {
	case bytes.HasPrefix(b, []byte("RIFF")) && string(b[8:12]) == "WEBP":
		return WebP, true
	case bytes.HasPrefix(b, []byte("RIFF")) && string(b[8:12]) == "WAVE":
		return WAV, true
	case string(b[4:8]) == "ftyp":
		return v.sniffBrand()
	}
	return matchMagic(b)
}

// sniffShort is sniffFormat for files shorter than any header. If the file continues, nothing is known yet.
func (v *fileView) sniffShort() (FileFormat, bool) {
	if v.total < 0 || v.total >= 16 {
		return 0, false
	}
	b, ok := v.readAt(0, int(v.total))
	if !ok {
		return 0, false
	}
	return matchMagic(b)
}

// matchMagic matches the formats which the first bytes alone identify.
func matchMagic(b []byte) (FileFormat, bool) {
	for _, m := range []struct {
		prefix string
		format FileFormat
	}{
		{"\xff\xd8\xff", JPEG},
		{pngMagic, PNG},
		{"GIF87a", GIF},
		{"GIF89a", GIF},
		{"II*\x00", TIFF},
		{"MM\x00*", TIFF},
		{"II+\x00", TIFF}, // BigTIFF
		{"MM\x00+", TIFF},
		{"BM", BMP},
	} {
		if bytes.HasPrefix(b, []byte(m.prefix)) {
			return m.format, true
		}
	}
	return 0, false
}

// sniffBrand distinguishes AVIF from HEIC by the brands of the file's first box, the major one first.
func (v *fileView) sniffBrand() (FileFormat, bool) {
	n, ok := v.readU32(0, binary.BigEndian)
	if !ok || n < 16 || n > firstRead {
		return 0, false
	}
	b, ok := v.readAt(8, int(n)-8)
	if !ok {
		return 0, false
	}
	heic := false
	for i := 0; i+4 <= len(b); i += 4 {
		if i == 4 {
			continue // the minor version
		}
		switch string(b[i : i+4]) {
		case "avif", "avis":
			return AVIF, true
		case "heic", "heix", "heim", "heis":
			return HEIC, true
		case "mif1", "mif2":
			heic = true // an image of some coding: later brands may name it
		}
	}
	if heic {
		return HEIC, true
	}
	return 0, false
}
