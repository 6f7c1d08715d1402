package pixel

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"image"
	"image/color"
	"image/gif"
	"math"
	"os"
	"testing"
)

// TestRateOfGIF: the rate of a GIF is the one at which OpenCV plays it, by which engines sample
// (tools/fixtures/make_media_loading.py).
func TestRateOfGIF(t *testing.T) {
	file, err := os.ReadFile("testdata/gifs.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Raw [][3]json.RawMessage `json:"gifs"` // delays in hundredths of a second, frames, rate
	}
	if err := json.NewDecoder(z).Decode(&golden); err != nil || len(golden.Raw) < 40 {
		t.Fatalf("%d GIFs: %v", len(golden.Raw), err)
	}
	for _, raw := range golden.Raw {
		var delays []int
		var frames int
		var rate float64
		for i, into := range []any{&delays, &frames, &rate} {
			if err := json.Unmarshal(raw[i], into); err != nil {
				t.Fatal(err)
			}
		}
		all := &gif.GIF{Delay: delays}
		for range delays {
			all.Image = append(all.Image, image.NewPaletted(image.Rect(0, 0, 4, 4), color.Palette{color.Black, color.White}))
			all.Disposal = append(all.Disposal, gif.DisposalNone)
		}
		var b bytes.Buffer
		if err := gif.EncodeAll(&b, all); err != nil {
			t.Fatal(err)
		}
		_, size, err := DecodeFrames(b.Bytes(), Limits{})
		if err != nil || size.Frames != frames || math.Abs(size.Rate-rate) > 1e-9 || size.Sequence {
			t.Errorf("delays %v: %+v, want %d frames at %v: %v", delays, size, frames, rate, err)
		}
	}
}
