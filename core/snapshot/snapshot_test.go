package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func all(Section) bool { return true }

// write encodes a snapshot of sections.
func write(h Header, sections ...Section) []byte {
	w := NewWriter(nil, h)
	for _, s := range sections {
		w.AddSection(s.Kind, s.Version, s.Need, func(dst []byte) []byte { return append(dst, s.Data...) })
	}
	return w.Finish()
}

// golden returns the snapshot in testdata/v1.hex.
func golden() (Header, []Section) {
	return Header{StreamID: 1763732945123456789, Seq: 123456, Taken: 1763733000000}, []Section{
		{Index, 1, Required, []byte("who holds what")},
		{Feeds, 2, Required, bytes.Repeat([]byte{0xa5}, 40)},
		{Residency, 1, Optional, nil},
		{SectionKind(900), 7, Optional, []byte("of a build to come")},
	}
}

func equal(a, b Section) bool {
	return a.Kind == b.Kind && a.Version == b.Version && a.Need == b.Need && bytes.Equal(a.Data, b.Data)
}

func TestRoundTrip(t *testing.T) {
	h, sections := golden()
	many := make([]Section, maxSections)
	for i := range many {
		many[i] = Section{Kind: SectionKind(i + 1), Data: []byte{byte(i)}}
	}
	for name, want := range map[string][]Section{"golden": sections, "none": nil, "many": many} {
		for _, h := range []Header{h, {}, {StreamID: math.MaxUint64, Seq: math.MaxUint64, Taken: math.MinInt64}} {
			data := write(h, want...)
			got, read, err := Open(data, all)
			if err != nil || got != h || !slices.EqualFunc(read, want, equal) {
				t.Errorf("%s: %+v with %d sections, %v", name, got, len(read), err)
			}
			if got, err := PeekHeader(data[:headerSize]); err != nil || got != h {
				t.Errorf("%s: peek sees %+v, %v", name, got, err)
			}
		}
	}
}

// TestGolden: snapshots of build 1 can be read, and are written the same, forever.
func TestGolden(t *testing.T) {
	const file = "testdata/v1.hex"
	h, sections := golden()
	data := write(h, sections...)
	if *rewrite {
		if err := os.WriteFile(file, []byte(dump(data)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, want) {
		t.Errorf("it is written now as\n%s", dump(data))
	}
	got, read, err := Open(want, all)
	if err != nil || got != h || !slices.EqualFunc(read, sections, equal) {
		t.Errorf("it is read as %+v, %v, %v", got, read, err)
	}
}

func dump(data []byte) (s string) {
	for line := range slices.Chunk(data, 16) {
		s += fmt.Sprintf("% x\n", line)
	}
	return s
}

func TestUnknownSections(t *testing.T) {
	h, sections := golden()
	data := write(h, sections...)
	known := func(s Section) bool { return s.Kind == Index || s.Kind == Feeds && s.Version <= 2 }
	got, read, err := Open(data, known)
	if err != nil || got != h || !slices.EqualFunc(read, sections[:2], equal) {
		t.Errorf("two kinds known: %+v, %v, %v", got, read, err)
	}
	_, _, err = Open(data, func(s Section) bool { return s.Kind != Feeds })
	if err == nil || !strings.Contains(err.Error(), "feeds of version 2") {
		t.Errorf("a required section is not known: %v", err)
	}
}

// TestDamage: no changed, missing or added byte is undetected.
func TestDamage(t *testing.T) {
	h, sections := golden()
	data := write(h, sections...)
	for i := range data {
		for _, bit := range []byte{1, 0x80} {
			bad := bytes.Clone(data)
			bad[i] ^= bit
			if _, _, err := Open(bad, all); err == nil {
				t.Errorf("byte %d was changed by %#x: nothing is seen", i, bit)
			}
		}
		if _, _, err := Open(data[:i], all); err == nil {
			t.Errorf("the first %d bytes are taken for the whole", i)
		}
	}
	if _, _, err := Open(append(bytes.Clone(data), 0), all); err == nil {
		t.Error("a byte that follows is not seen")
	}
	// Sections in another order, and a missing one, with valid frames.
	a, b := data[headerSize:headerSize+frameSize+14], data[headerSize+frameSize+14:headerSize+2*frameSize+54]
	rest := data[headerSize+len(a)+len(b):]
	for name, bad := range map[string][]byte{
		"order":    slices.Concat(data[:headerSize], b, a, rest),
		"left out": slices.Concat(data[:headerSize], b, rest),
		"twice":    slices.Concat(data[:headerSize], a, a, b, rest),
	} {
		if _, _, err := Open(bad, all); err == nil {
			t.Errorf("%s: nothing is seen", name)
		}
	}
}

// sound recomputes the checksums of data after a change.
func sound(data []byte) []byte {
	if len(data) >= headerSize {
		binary.LittleEndian.PutUint32(data[36:], checksum(data[:36]))
	}
	for at := headerSize; at+frameSize+endSize <= len(data); {
		frame := data[at : at+frameSize]
		binary.LittleEndian.PutUint32(frame[20:], checksum(frame[:20]))
		size := binary.LittleEndian.Uint64(frame[8:])
		if size > uint64(len(data)-at-frameSize-endSize) {
			break
		}
		binary.LittleEndian.PutUint32(frame[16:], checksum(data[at+frameSize:at+frameSize+int(size)]))
		binary.LittleEndian.PutUint32(frame[20:], checksum(frame[:20]))
		at += frameSize + int(size)
	}
	if len(data) >= endSize {
		binary.LittleEndian.PutUint32(data[len(data)-4:], checksum(data[:len(data)-4]))
	}
	return data
}

// TestRefused: errors with valid checksums are refused and described.
func TestRefused(t *testing.T) {
	h, sections := golden()
	for want, change := range map[string]func([]byte){
		"version 2, this build reads 1": func(d []byte) { d[8] = 2 },
		"reserved":                      func(d []byte) { d[10] = 1 },
		"flags":                         func(d []byte) { d[headerSize+4] = 2 },
		"has 1000 bytes":                func(d []byte) { binary.LittleEndian.PutUint64(d[headerSize+8:], 1000) },
		"bytes, of which":               func(d []byte) { binary.LittleEndian.PutUint64(d[headerSize+8:], math.MaxUint64) },
		"two sections index":            func(d []byte) { d[headerSize+frameSize+14] = byte(Index) },
		"kind 0":                        func(d []byte) { d[headerSize] = 0 },
		"sections are missing":          func(d []byte) { d[len(d)-8]++ },
	} {
		data := write(h, sections...)
		change(data)
		if _, _, err := Open(sound(data), all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	w := NewWriter(nil, h)
	for i := range maxSections {
		w.AddSection(SectionKind(i+1), 1, Optional, func(dst []byte) []byte { return dst })
	}
	data := w.Finish()
	more := slices.Concat(data[:headerSize+frameSize], data[headerSize:])
	if _, _, err := Open(sound(more), all); err == nil {
		t.Error("a section too many is read")
	}
}

// FuzzOpen: any input is either refused or exactly what a Writer writes, even with valid checksums.
func FuzzOpen(f *testing.F) {
	h, sections := golden()
	data := write(h, sections...)
	f.Add(data, false)
	f.Add(data, true)
	f.Add(write(Header{}), true)
	f.Add([]byte(magic), false)
	f.Add(data[:len(data)-3], true)
	f.Fuzz(func(t *testing.T, data []byte, mend bool) {
		data = bytes.Clone(data)
		if mend {
			data = sound(data)
		}
		h, sections, err := Open(data, all)
		if err != nil {
			return
		}
		if again := write(h, sections...); !bytes.Equal(again, data) {
			t.Errorf("%x is read, and written as %x", data, again)
		}
	})
}
