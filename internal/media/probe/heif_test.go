package probe

import (
	"encoding/binary"
	"testing"

	"penstock/core/media"
)

// boxOf returns a box of an ISO base media file.
func boxOf(kind string, parts ...[]byte) []byte {
	body := join(parts...)
	return join(binary.BigEndian.AppendUint32(nil, uint32(8+len(body))), []byte(kind), body)
}

func words(n ...uint32) (b []byte) {
	for _, w := range n {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// phone returns a file as phones write it: the primary item is a grid of tiles, whose sizes come first,
// with properties of its own.
func phone(own ...byte) []byte {
	ipco := boxOf("ipco",
		boxOf("ispe", words(0, 512, 512)),
		boxOf("hvcC", make([]byte, 40)),
		boxOf("ispe", words(0, 4032, 3024)),
		boxOf("irot", []byte{1}),
		boxOf("imir", []byte{1}),
		boxOf("clap", words(4000, 1, 6001, 2, 0, 1, 0, 1)),
		boxOf("irot", []byte{2}),
	)
	others := boxOf("ipma", words(0, 1), []byte{0, 1, 2, 0x81, 0x82})
	wide := boxOf("ipma", words(0x01000001, 1, 7), []byte{1, 0x80, 1}) // long numbers
	ipma := boxOf("ipma", words(0, 2), []byte{0, 2, 2, 0x81, 0x82}, []byte{0, 49, byte(len(own))}, own)
	meta := boxOf("meta", words(0), boxOf("hdlr", make([]byte, 25)), boxOf("pitm", words(0), []byte{0, 49}),
		boxOf("iinf", make([]byte, 900)), boxOf("iprp", ipco, others, wide, ipma))
	return join(boxOf("ftyp", []byte("heic\x00\x00\x00\x00mif1heic")), meta, boxOf("mdat", make([]byte, 100)))
}

func TestPrimaryItem(t *testing.T) {
	for _, c := range []struct {
		own  []byte
		want media.Size
	}{
		{[]byte{3}, media.Size{Width: 4032, Height: 3024}},
		{[]byte{0x83, 0x84}, media.Size{Width: 3024, Height: 4032}},
		{[]byte{3, 0, 5}, media.Size{Width: 4032, Height: 3024}},
		{[]byte{3, 7}, media.Size{Width: 4032, Height: 3024}},
		{[]byte{3, 6}, media.Size{Width: 4000, Height: 3000}},
		{[]byte{3, 6, 4, 5}, media.Size{Width: 3000, Height: 4000}},
		{[]byte{3, 9}, media.Size{}},
		{[]byte{1, 6}, media.Size{}}, // the crop is larger than the tile
		{[]byte{2}, media.Size{}},
		{nil, media.Size{}},
	} {
		info, err := ReadHeader(phone(c.own...))
		if info.Size != c.want || (err != nil) != (c.want == media.Size{}) {
			t.Errorf("%v: %+v %v", c.own, info, err)
		}
	}
}

// TestMetaAtEnd: the metadata may follow the image, and is requested there.
func TestMetaAtEnd(t *testing.T) {
	b := phone(3, 4)
	ftyp, meta := b[:24], b[24:len(b)-108]
	long := join(words(1), []byte("mdat"), words(0, 16+3<<20), make([]byte, 3<<20))
	for name, data := range map[string][]byte{"": boxOf("mdat", make([]byte, 3<<20)), "64 bits": long} {
		var p Probe
		file := join(ftyp, data, meta)
		o := drive(t, &p, file, 1<<20, true)
		if o.err != nil || o.info.Size != (media.Size{Width: 3024, Height: 4032}) || !o.info.Oriented || o.ranges > 3 {
			t.Errorf("mdat %s: %+v", name, o)
		}
		var unknown Probe
		if o := drive(t, &unknown, file, 1<<20, false); o.err != nil || o.info.Size.Width != 3024 {
			t.Errorf("mdat %s: %+v", name, o)
		}
	}
}
