package pixel

import (
	"bytes"
	"encoding/base64"
	"errors"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"runtime"
	"testing"

	"penstock/core/media"
)

// TestMemory holds what is said of a file before it is decoded against what decoding it allocates.
func TestMemory(t *testing.T) {
	const side, count = 600, 40
	var still, flat bytes.Buffer
	frame := image.NewPaletted(image.Rect(0, 0, side, side), color.Palette{color.Black, color.White})
	if err := png.Encode(&still, frame); err != nil {
		t.Fatal(err)
	}
	if err := jpeg.Encode(&flat, frame, nil); err != nil {
		t.Fatal(err)
	}
	film := &gif.GIF{}
	for range count {
		film.Image, film.Delay = append(film.Image, frame), append(film.Delay, 1)
	}
	var moving bytes.Buffer
	if err := gif.EncodeAll(&moving, film); err != nil {
		t.Fatal(err)
	}
	text := []byte(base64.StdEncoding.EncodeToString(flat.Bytes()))
	frames := bytes.Join(slicesOf(text, count), []byte{','})
	slow := riff(1, 1, minRate, 8, make([]byte, 200_000)) // 200 s in 200 KB
	for name, c := range map[string]struct {
		kind media.Kind
		file []byte
	}{
		"PNG": {media.Image, still.Bytes()}, "JPEG": {media.Image, flat.Bytes()},
		"scans": {media.Image, manyScans(40, side)}, "GIF": {media.Image, moving.Bytes()},
		"film": {media.Video, moving.Bytes()}, "frames": {media.Video, frames}, "sound": {media.Audio, slow},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tensor, _, err := DecodeObject(c.kind, c.file, Limits{})
		runtime.ReadMemStats(&after)
		said, took := DecodeMemory(c.kind, c.file, Limits{}), int64(after.TotalAlloc-before.TotalAlloc)
		if name == "frames" { // what one of them took is free when the next is decoded
			took = int64(len(tensor.Data))
		}
		const constant = 2 << 20 // tables and buffers
		if err != nil || took > said+constant || said < int64(len(tensor.Data)) {
			t.Errorf("%s: %d bytes are said, %d are taken: %v", name, said, took, err)
		}
		if most := DecodeMemory(c.kind, c.file, Limits{Pixels: 1000, Samples: 1000}); most != 0 {
			t.Errorf("%s: %d bytes are said of what is refused", name, most)
		}
		for n := range min(len(c.file), 300) {
			DecodeMemory(c.kind, c.file[:n], Limits{}) // does not fail
		}
	}
}

func slicesOf(b []byte, n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = b
	}
	return all
}

// manyScans returns a progressive JPEG of n scans of a flat picture. Each says in some bytes that all
// of its blocks are as they were.
func manyScans(n, side int) []byte {
	b := append([]byte{0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0}, bytes.Repeat([]byte{1}, 64)...)
	b = append(b, 0xFF, 0xC2, 0, 11, 8, byte(side>>8), byte(side), byte(side>>8), byte(side), 1, 1, 0x11, 0)
	// One code of AC coefficients, a zero: a run of 2^14 blocks without any, and as many more as 14 bits say.
	b = append(b, 0xFF, 0xC4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xE0)
	scan := []byte{0xFF, 0xDA, 0, 8, 1, 1, 0, 1, 63, 0}
	acc, bits := uint64(0), 0
	for blocks := (side + 7) / 8 * ((side + 7) / 8); blocks > 0; blocks -= 1<<15 - 1 {
		for acc, bits = acc<<15|0x3FFF, bits+15; bits >= 8; bits -= 8 {
			if scan = append(scan, byte(acc>>(bits-8))); scan[len(scan)-1] == 0xFF {
				scan = append(scan, 0)
			}
		}
	}
	scan = append(scan, byte(acc<<(8-bits)))
	return append(append(b, bytes.Repeat(scan, n)...), 0xFF, 0xD9)
}

// TestScans: a JPEG that goes over its picture again and again is refused before it is begun.
func TestScans(t *testing.T) {
	if _, _, err := DecodeImage(manyScans(maxScans, 16), Limits{}); err != nil {
		t.Error(err)
	}
	if _, _, err := DecodeImage(manyScans(maxScans+1, 16), Limits{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if _, _, err := DecodeImage(manyScans(500_000, 5000), Limits{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	thumbnail := manyScans(maxScans, 8)
	for name, c := range map[string]struct {
		file []byte
		want int
	}{
		"none":       {[]byte{0xFF, 0xD8, 0xFF}, 0},
		"after it":   {append(manyScans(3, 8), thumbnail...), 3},
		"inside":     {append([]byte{0xFF, 0xD8, 0xFF, 0xE1, byte((len(thumbnail) + 2) >> 8), byte(len(thumbnail) + 2)}, append(thumbnail, manyScans(2, 8)[2:]...)...), 2},
		"cut off":    {[]byte{0xFF, 0xD8, 0xFF, 0xDA, 0}, 1},
		"filled up":  {[]byte{0xFF, 0xD8, 0xFF, 0xFF, 0xFF, 0xDA, 0, 2, 1, 0xFF, 0xDA, 0, 2}, 2},
		"restarts":   {[]byte{0xFF, 0xD8, 0xFF, 0xDA, 0, 2, 1, 0xFF, 0xD0, 0xFF, 0x00, 0xFF, 0xD7, 0xFF, 0xDA, 0, 2}, 2},
		"far beyond": {[]byte{0xFF, 0xD8, 0xFF, 0xE0, 0xFF, 0xFF}, 0},
	} {
		if got := countScans(c.file); got != c.want {
			t.Errorf("%s: %d scans, want %d", name, got, c.want)
		}
	}
}
