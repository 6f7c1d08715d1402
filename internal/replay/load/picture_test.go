package load

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"strings"
	"testing"

	"penstock/internal/replay"
)

// TestPictures: the workload's images go out as pictures of their size, equal for equal ids and seeds alone, and the
// rest is words.
func TestPictures(t *testing.T) {
	sent := func(seed uint64, id string, w, h int) (url, text string) {
		t.Helper()
		b := &bodyBuilder{model: "m", images: newImageGenerator(seed), vocab: replay.Vocabulary{Seed: 1}}
		body, path, err := b.appendBody(nil, &replay.Request{Input: 14, Media: []replay.Media{{Kind: "image", ID: id, Width: w, Height: h, Tokens: 10}}})
		if err != nil || path != chatPath {
			t.Fatal(path, err)
		}
		var said struct {
			Messages []struct {
				Content []struct {
					Type, Text string
					Image      struct{ URL string } `json:"image_url"`
				}
			}
		}
		if err := json.Unmarshal(body, &said); err != nil || len(said.Messages) != 1 || len(said.Messages[0].Content) != 2 {
			t.Fatalf("%v: %s", err, body)
		}
		parts := said.Messages[0].Content
		if parts[0].Type != "image_url" || parts[1].Type != "text" {
			t.Fatalf("%s", body)
		}
		return parts[0].Image.URL, parts[1].Text
	}
	url, text := sent(1, "a", 100, 37)
	if n := len(strings.Fields(text)); n != 4 {
		t.Errorf("%d words beside a picture of 10 tokens of 14", n)
	}
	file, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(url, "data:image/png;base64,"))
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(file))
	if err != nil || picture.Bounds().Dx() != 100 || picture.Bounds().Dy() != 37 {
		t.Errorf("%v %v", picture.Bounds(), err)
	}
	if again, _ := sent(1, "a", 100, 37); again != url {
		t.Error("the same picture is another one the second time")
	}
	for name, c := range map[string]struct {
		seed uint64
		id   string
		w    int
	}{"id": {1, "b", 100}, "seed": {2, "a", 100}, "size": {1, "a", 101}} {
		if other, _ := sent(c.seed, c.id, c.w, 37); other == url {
			t.Errorf("another %s makes the same picture", name)
		}
	}
	b := &bodyBuilder{model: "m", images: newImageGenerator(1)}
	if _, path, err := b.appendBody(nil, &replay.Request{Input: 3}); err != nil || path != completionsPath {
		t.Errorf("a request without pictures goes to %s: %v", path, err)
	}
}

func BenchmarkPicture(b *testing.B) {
	p, dst := newImageGenerator(1), []byte(nil)
	m := &replay.Media{ID: "a", Width: 224, Height: 224}
	b.ReportAllocs()
	for b.Loop() {
		dst = p.appendDataURI(dst[:0], m)
	}
	b.ReportMetric(float64(len(dst)), "bytes")
}
