package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/image/bmp"

	"penstock/core/splitmix"
)

// photo is a picture of noise, of 8 by 8 tokens.
func photo(seed uint64) image.Image {
	img := image.NewRGBA(image.Rect(0, 0, 224, 224))
	for i := range 224 * 224 {
		v := splitmix.Mix(seed + uint64(i)*splitmix.Step)
		img.SetRGBA(i%224, i/224, color.RGBA{byte(v), byte(v >> 8), byte(v >> 16), 255})
	}
	return img
}

const photoTokens = 64

func asPNG(t *testing.T, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func asURI(file []byte) string {
	return "data:application/octet-stream;base64," + base64.StdEncoding.EncodeToString(file)
}

// about is a greedy question about a picture.
func about(question, url string) map[string]any {
	return map[string]any{
		"model": "penstock-tiny", "max_tokens": 12, "temperature": 0,
		"messages": []any{map[string]any{"role": "user", "content": []any{
			map[string]any{"type": "text", "text": question},
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}},
		}}},
	}
}

// TestPicturesGoToTheirHolder: a picture that was shown is found again, under whatever name it
// comes in pixels mode, and another one with the same text is not taken for it.
func TestPicturesGoToTheirHolder(t *testing.T) {
	lake, mill := photo(1), photo(2)
	var b bytes.Buffer
	if err := bmp.Encode(&b, lake); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/lake" {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(asPNG(t, lake)))
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(asPNG(t, mill)))
	}))
	defer files.Close()
	const question = "What does the picture show, and what does it not show? Be brief, and be sure of what you say."
	for identity, c := range map[string]struct {
		first string
		same  []string
		apart []string
	}{
		"url":    {files.URL + "/lake", []string{files.URL + "/lake"}, []string{files.URL + "/lake?signed=1", files.URL + "/mill"}},
		"bytes":  {files.URL + "/lake", []string{files.URL + "/lake?signed=2", asURI(asPNG(t, lake))}, []string{asURI(b.Bytes()), files.URL + "/mill"}},
		"pixels": {files.URL + "/lake", []string{files.URL + "/lake?signed=3", asURI(asPNG(t, lake)), asURI(b.Bytes())}, []string{files.URL + "/mill"}},
	} {
		t.Run(identity, func(t *testing.T) {
			s := start(t, "media-identity="+identity, "media-allow-private=true")
			first := s.complete("/v1/chat/completions", about(question, c.first))
			if first.status != 200 || first.prompt < photoTokens || first.cached != 0 {
				t.Fatalf("%+v", first)
			}
			full := (first.prompt - 1) / s.ready.BlockSize * s.ready.BlockSize
			s.eventually("the router knows the blocks", func() bool {
				return s.complete("/v1/chat/completions", about(question, c.first)).cached == full
			})
			for _, url := range c.same {
				again := s.complete("/v1/chat/completions", about(question, url))
				if again.cached != full || again.worker != first.worker || again.text != first.text {
					t.Errorf("the same picture: %+v, first %+v", again, first)
				}
			}
			for _, url := range c.apart {
				other := s.complete("/v1/chat/completions", about(question, url))
				if other.status != 200 || other.cached > first.prompt-photoTokens || other.prompt != first.prompt {
					t.Errorf("another picture: %+v, first %+v", other, first)
				}
				if other.text == first.text && strings.HasSuffix(url, "mill") {
					t.Error("the answer does not depend on the picture")
				}
			}
			s.idle()
		})
	}
	if asked.Load() == 0 {
		t.Error("nobody asked for a file")
	}
}

// TestPictureRefused: what is wrong with a picture is the client's to hear, with its place.
func TestPictureRefused(t *testing.T) {
	s := start(t)
	for url, want := range map[string]string{
		asURI([]byte("not a picture")):            "messages[0].content[1]",
		asURI(asPNG(t, photo(1))[:300]):           "messages[0].content[1]",
		"http://127.0.0.1:1/internal":             "messages[0].content[1]",
		"file:///etc/passwd":                      "messages[0].content[1]",
		"data:image/png;base64,%%%":               "messages[0].content[1]",
		"http://[::ffff:169.254.169.254]/latest/": "messages[0].content[1]",
	} {
		resp, data := s.do(http.MethodPost, "/v1/chat/completions", about("What is this?", url))
		var e struct {
			Error struct{ Message, Param string }
		}
		if err := json.Unmarshal(data, &e); err != nil || resp.StatusCode != 400 || !strings.HasPrefix(e.Error.Param, want) || !strings.Contains(e.Error.Message, want) {
			t.Errorf("%.40s: %s %s", url, resp.Status, data)
		}
	}
	s.idle()
}
