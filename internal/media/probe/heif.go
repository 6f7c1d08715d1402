package probe

import "encoding/binary"

// maxItems bounds the boxes and items which are read.
const maxItems = 4096

// isoBox is a box of an ISO base media file, with the bounds of its content.
type isoBox struct {
	kind       string
	begin, end int64
}

// readBox returns the box at pos, which ends before end (-1: with the file).
func (v *fileView) readBox(pos, end int64) (isoBox, error) {
	head, ok := v.readAt(pos, 8)
	if !ok {
		return isoBox{}, errShort
	}
	size, kind, begin := int64(binary.BigEndian.Uint32(head)), string(head[4:8]), pos+8
	switch size {
	case 1:
		n, ok := v.readU64(begin, binary.BigEndian)
		if !ok {
			return isoBox{}, errShort
		}
		size, begin = int64(min(n, 1<<61)), begin+8
	case 0: // up to the end
		if end >= 0 {
			size = end - pos
		} else {
			size = 1 << 61
		}
	}
	b := isoBox{kind, begin, pos + size}
	if b.end < b.begin || end >= 0 && b.end > end {
		return isoBox{}, newMalformed("a box that is longer than what it is in")
	}
	return b, nil
}

// findBox returns the first box of a kind between begin and end.
func (v *fileView) findBox(kind string, begin, end int64) (isoBox, error) {
	pos := begin
	for range maxItems {
		if end >= 0 && pos >= end {
			return isoBox{}, newMalformed("there is no box " + kind)
		}
		b, err := v.readBox(pos, end)
		if err != nil || b.kind == kind {
			return b, err
		}
		pos = b.end
	}
	return isoBox{}, newUnsupported("too many boxes")
}

// parseHEIF parses AVIF and HEIC: the primary item's size, crop and rotation among the item properties. The
// tiles of the image have sizes too.
func (v *fileView) parseHEIF(f *parsedHeader) error {
	meta, err := v.findBox("meta", 0, -1)
	if err != nil {
		return err
	}
	inside := meta.begin + 4 // version and flags
	pitm, err := v.findBox("pitm", inside, meta.end)
	if err != nil {
		return err
	}
	primary, err := v.primaryItem(pitm)
	if err != nil {
		return err
	}
	iprp, err := v.findBox("iprp", inside, meta.end)
	if err != nil {
		return err
	}
	ipco, err := v.findBox("ipco", iprp.begin, iprp.end)
	if err != nil {
		return err
	}
	properties, err := v.childBoxes(ipco)
	if err != nil {
		return err
	}
	for pos := ipco.end; ; {
		ipma, err := v.findBox("ipma", pos, iprp.end)
		if err != nil {
			return err
		}
		indexes, ok, err := v.itemProperties(ipma, primary)
		if err != nil {
			return err
		}
		if ok {
			return v.applyProperties(f, properties, indexes)
		}
		pos = ipma.end
	}
}

// primaryItem returns the id of the primary item.
func (v *fileView) primaryItem(pitm isoBox) (uint32, error) {
	b, ok := v.readAt(pitm.begin, 6)
	if !ok {
		return 0, errShort
	}
	if b[0] == 0 {
		return uint32(binary.BigEndian.Uint16(b[4:])), nil
	}
	n, ok := v.readU32(pitm.begin+4, binary.BigEndian)
	if !ok {
		return 0, errShort
	}
	return n, nil
}

// childBoxes returns all boxes in a box.
func (v *fileView) childBoxes(in isoBox) ([]isoBox, error) {
	var all []isoBox
	for pos := in.begin; pos < in.end; {
		b, err := v.readBox(pos, in.end)
		if err != nil {
			return nil, err
		}
		if len(all) == maxItems {
			return nil, newUnsupported("too many properties")
		}
		all, pos = append(all, b), b.end
	}
	return all, nil
}

// itemProperties returns the properties of an item, numbered from 1, in order of application.
func (v *fileView) itemProperties(ipma isoBox, item uint32) ([]int, bool, error) {
	b, ok := v.readAt(ipma.begin, 8)
	if !ok {
		return nil, false, errShort
	}
	wideItem, wideIndex := b[0] > 0, b[3]&1 != 0
	entries := binary.BigEndian.Uint32(b[4:])
	pos, idLen, indexLen := ipma.begin+8, 2, 1
	if wideItem {
		idLen = 4
	}
	if wideIndex {
		indexLen = 2
	}
	for range min(entries, maxItems) {
		head, ok := v.readAt(pos, idLen+1)
		if !ok {
			return nil, false, errShort
		}
		id := uint32(binary.BigEndian.Uint16(head))
		if wideItem {
			id = binary.BigEndian.Uint32(head)
		}
		n := int(head[idLen])
		pos += int64(idLen) + 1
		if pos+int64(n*indexLen) > ipma.end {
			return nil, false, newMalformed("associations behind the end of their box")
		}
		if id != item {
			pos += int64(n * indexLen)
			continue
		}
		list, ok := v.readAt(pos, n*indexLen)
		if !ok {
			return nil, false, errShort
		}
		indexes := make([]int, n)
		for i := range indexes {
			if wideIndex {
				indexes[i] = int(binary.BigEndian.Uint16(list[2*i:]) & 0x7FFF)
			} else {
				indexes[i] = int(list[i] & 0x7F)
			}
		}
		return indexes, true, nil
	}
	return nil, false, nil
}

// applyProperties applies the properties of the primary item, transformations in order.
func (v *fileView) applyProperties(f *parsedHeader, properties []isoBox, indexes []int) error {
	width, height := int64(0), int64(0)
	for _, i := range indexes {
		if i == 0 {
			continue // no property, in this format
		}
		if i > len(properties) {
			return newMalformed("a property that is not there")
		}
		p := properties[i-1]
		switch p.kind {
		case "ispe":
			b, ok := v.readAt(p.begin, 12)
			if !ok {
				return errShort
			}
			width, height = int64(binary.BigEndian.Uint32(b[4:])), int64(binary.BigEndian.Uint32(b[8:]))
		case "clap":
			b, ok := v.readAt(p.begin, 16)
			if !ok {
				return errShort
			}
			w, wok := wholePart(b)
			h, hok := wholePart(b[8:])
			if !wok || !hok || w > width || h > height {
				return newMalformed("a crop that does not fit")
			}
			width, height = w, h
		case "irot":
			b, ok := v.readAt(p.begin, 1)
			if !ok {
				return errShort
			}
			if b[0]&1 != 0 {
				width, height = height, width
			}
		}
	}
	if width == 0 && height == 0 {
		return newMalformed("the primary item tells no size")
	}
	f.setSize(width, height)
	f.orientation = 1
	return nil
}

// wholePart returns the whole part of an unsigned fraction if it is above 0.
func wholePart(b []byte) (int64, bool) {
	n, d := int64(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:]))
	if d == 0 || n < d {
		return 0, false
	}
	return n / d, true
}
