package probe

import (
	"bytes"
	"encoding/binary"
)

// The tags of TIFF directories which are read.
const (
	tagWidth       = 256
	tagHeight      = 257
	tagOrientation = 274
	maxEntries     = 512 // read per directory
)

// directory holds the fields of the first directory of a TIFF structure; 0 is absent.
type directory struct {
	width, height, orientation int64
	all                        bool // all entries were read
}

// readDirectory reads the first directory of the TIFF structure at base, which ends before end (-1: with
// the file). The structure is a TIFF file or EXIF data.
func (v *fileView) readDirectory(base, end int64) (directory, error) {
	head, err := v.readWithin(base, 8, end)
	if err != nil {
		return directory{}, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[0] == 'M' {
		order = binary.BigEndian
	}
	big := false
	switch magic := string(head[:2]); {
	case magic != "II" && magic != "MM":
		return directory{}, newMalformed("no byte order")
	case order.Uint16(head[2:]) == 43:
		big = true
	case order.Uint16(head[2:]) != 42:
		return directory{}, newMalformed("no TIFF structure")
	}
	at, count, step := base+int64(order.Uint32(head[4:])), int64(0), int64(12)
	if big {
		b, err := v.readWithin(base+8, 8, end)
		if err != nil {
			return directory{}, err
		}
		off := order.Uint64(b)
		if order.Uint16(head[4:]) != 8 || off > 1<<61 {
			return directory{}, newMalformed("offsets of unknown width")
		}
		at = base + int64(off)
		if b, err = v.readWithin(at, 8, end); err != nil {
			return directory{}, err
		}
		at, count, step = at+8, int64(min(order.Uint64(b), maxEntries+1)), 20
	} else {
		b, err := v.readWithin(at, 2, end)
		if err != nil {
			return directory{}, err
		}
		at, count = at+2, int64(order.Uint16(b))
	}
	d := directory{all: count <= maxEntries}
	count = min(count, maxEntries)
	for i := range count {
		e, err := v.readWithin(at+i*step, int(step), end)
		if err != nil {
			return directory{}, err
		}
		switch order.Uint16(e) {
		case tagWidth:
			d.width = parseEntry(e, order)
		case tagHeight:
			d.height = parseEntry(e, order)
		case tagOrientation:
			d.orientation = parseEntry(e, order)
		}
		if d.orientation != 0 && (base > 0 || d.width != 0 && d.height != 0) {
			break
		}
	}
	return d, nil
}

// readWithin returns n bytes at an offset of a structure which ends before end (-1: with the file).
func (v *fileView) readWithin(off int64, n int, end int64) ([]byte, error) {
	if end >= 0 && off+int64(n) > end {
		return nil, newMalformed("a directory that ends behind what it is in")
	}
	b, ok := v.readAt(off, n)
	if !ok {
		return nil, errShort
	}
	return b, nil
}

// parseEntry returns the single unsigned number of a directory entry; 0 if it holds something else.
func parseEntry(e []byte, order binary.ByteOrder) int64 {
	value := e[8:]
	count := uint64(order.Uint32(e[4:]))
	if len(e) == 20 {
		count, value = order.Uint64(e[4:]), e[12:]
	}
	if count != 1 {
		return 0
	}
	switch order.Uint16(e[2:]) {
	case 1: // BYTE
		return int64(value[0])
	case 3: // SHORT
		return int64(order.Uint16(value))
	case 4: // LONG
		return int64(order.Uint32(value))
	case 16: // LONG8
		if len(e) == 20 {
			return int64(min(order.Uint64(value), 1<<62))
		}
	}
	return 0
}

// readEXIF returns the orientation of the EXIF structure between base and end: 1 to 8, or 0 if absent. err
// is set if more of the file is needed. broken says that the structure is invalid; then it has no
// orientation.
func (v *fileView) readEXIF(base, end int64) (turn int, broken bool, err error) {
	d, err := v.readDirectory(base, end)
	switch {
	case err == errShort:
		return 0, false, errShort
	case err != nil:
		return 0, true, nil
	case d.orientation == 0:
		return 0, !d.all, nil
	}
	return normalizeOrientation(d.orientation), false, nil
}

// normalizeOrientation returns an orientation; invalid numbers become 1.
func normalizeOrientation(n int64) int {
	if n < 1 || n > 8 {
		return 1
	}
	return int(n)
}

// xmpOrientation returns the orientation in an XMP packet, found as Pillow does; 1 if absent.
func xmpOrientation(packet []byte) int {
	key := []byte("tiff:Orientation")
	for {
		i := bytes.Index(packet, key)
		if i < 0 {
			return 1
		}
		packet = packet[i+len(key):]
		rest, ok := bytes.CutPrefix(packet, []byte(`="`))
		if !ok {
			rest, ok = bytes.CutPrefix(packet, []byte(">"))
		}
		if ok && len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9' {
			return normalizeOrientation(int64(rest[0] - '0'))
		}
	}
}

// parseTIFF parses TIFF and BigTIFF: the first directory, which is often at the end of the file.
func (v *fileView) parseTIFF(f *parsedHeader) error {
	d, err := v.readDirectory(0, -1)
	switch {
	case err != nil:
		return err
	case d.width == 0 || d.height == 0:
		return newMalformed("the first directory tells no size")
	}
	f.setSize(d.width, d.height)
	switch {
	case d.orientation != 0:
		f.orientation = normalizeOrientation(d.orientation)
	case d.all:
		f.orientation = 1
	}
	return nil
}
