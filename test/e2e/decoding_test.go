package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// pictures is a server of two pictures, whatever is behind the question mark, that counts.
type pictures struct {
	*httptest.Server
	whole, ranges atomic.Int64
}

func servePictures(t *testing.T) *pictures {
	t.Helper()
	files := map[string][]byte{}
	for name, c := range map[string]color.RGBA{"/red.png": {200, 10, 10, 255}, "/blue.png": {10, 10, 200, 255}} {
		p := image.NewRGBA(image.Rect(0, 0, 168, 140))
		for i := range 168 * 140 {
			p.SetRGBA(i%168, i/168, c)
		}
		var b bytes.Buffer
		if err := png.Encode(&b, p); err != nil {
			t.Fatal(err)
		}
		files[name] = b.Bytes()
	}
	p := &pictures{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if r.Header.Get("Range") == "" {
			p.whole.Add(1)
			_, _ = w.Write(b)
			return
		}
		p.ranges.Add(1)
		end := min(4096, len(b))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", end-1, len(b)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(b[:end])
	}))
	t.Cleanup(p.Close)
	return p
}

// uri is a picture as data.
func (p *pictures) uri(t *testing.T, path string) string {
	t.Helper()
	resp, err := p.Client().Get(p.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	p.whole.Add(-1)
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

// looked is what was answered about a picture.
type looked struct {
	Choices []struct{ Message struct{ Content string } }
	Usage   struct {
		Prompt  int `json:"prompt_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// looks asks about a picture, with a text around it that is always the same.
func (s *server) looks(url string) (text string, cached int, worker string) {
	s.t.Helper()
	resp, data := s.do(http.MethodPost, "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":12,"temperature":0,"messages":[
		{"role":"system","content":"You describe what you are shown, in plain words, and nothing else."},
		{"role":"user","content":[{"type":"text","text":"Look at this:"},{"type":"image_url","image_url":{"url":%q}},{"type":"text","text":"What do you see, and where?"}]}]}`, s.ready.Model, url))
	var a looked
	if err := json.Unmarshal(data, &a); err != nil || resp.StatusCode != http.StatusOK || len(a.Choices) != 1 {
		s.t.Fatalf("%s %s %v", resp.Status, data, err)
	}
	return a.Choices[0].Message.Content, a.Usage.Details.Cached, resp.Header.Get("x-penstock-worker")
}

// TestDecodedByFrontends: two conversations about two pictures share the text before them and nothing else; one
// picture by two signed URLs and as data is one where it is known by pixels, and the worker that has
// seen it is found; however it came to the engine, the answer is the same.
func TestDecodedByFrontends(t *testing.T) {
	p := servePictures(t)
	red, blue := p.uri(t, "/red.png"), p.uri(t, "/blue.png")
	const block = 16
	said := ""
	for _, settings := range [][]string{
		{"media-identity=url"},
		{"media-identity=pixels"},
		{"frontend-decoding=true", "mm-transfer=shm"},
		{"frontend-decoding=true", "mm-transfer=network"},
		{"frontend-decoding=true", "mm-transfer=off"},
	} {
		t.Run(strings.Join(settings, " "), func(t *testing.T) {
			s := start(t, append(settings, "media-allow-private=true", "router-predicted-ttl=10s")...)
			byPixels := settings[0] != "media-identity=url"
			text, cached, first := s.looks(p.URL + "/red.png?sig=1")
			if cached != 0 {
				t.Errorf("%d tokens of the first request are cached", cached)
			}
			again, all, worker := s.looks(p.URL + "/red.png?sig=1")
			if again != text || all < 3*block || worker != first {
				t.Errorf("the same again: %d tokens cached at worker %s after %s: %q, %q", all, worker, first, text, again)
			}
			for _, url := range []string{p.URL + "/red.png?sig=2", red} {
				other, cached, worker := s.looks(url)
				if other != text {
					t.Errorf("the same picture as %.40s: %q, not %q", url, other, text)
				}
				if byPixels && (cached != all || worker != first) {
					t.Errorf("the same picture as %.40s: %d tokens cached at worker %s, not %d at %s", url, cached, worker, all, first)
				}
				if !byPixels && cached >= all {
					t.Errorf("another URL, %.40s: %d tokens cached", url, cached)
				}
			}
			for _, url := range []string{p.URL + "/blue.png", blue} {
				other, cached, _ := s.looks(url)
				seen := byPixels && url == blue // by its URL
				if other == text || (cached == all) != seen || cached > all {
					t.Errorf("another picture: %q, %d tokens cached", other, cached)
				}
			}
			if said == "" {
				said = text
			}
			if text != said {
				t.Errorf("%q, and by URL %q", text, said)
			}
			resp, data := s.do(http.MethodGet, "/metrics", nil)
			if resp.StatusCode != http.StatusOK || strings.Contains(string(data), "penstock_media_lent_objects ") && !strings.Contains(string(data), "penstock_media_lent_objects 0\n") {
				t.Errorf("objects are still lent: %s", resp.Status)
			}
			if strings.Contains(s.log.String(), "sig=") || strings.Contains(s.log.String(), "base64") {
				t.Error("the log has URLs")
			}
		})
	}
}

// TestPicturesFromWithin: unless settings allow it, nothing of this machine is fetched, and
// no answer tells what is there.
func TestPicturesFromWithin(t *testing.T) {
	p := servePictures(t)
	s := start(t)
	for _, url := range []string{p.URL + "/red.png", "http://169.254.169.254/latest/meta-data", "http://[::ffff:127.0.0.1]/", "http://localhost/"} {
		resp, data := s.do(http.MethodPost, "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%q}}]}]}`, s.ready.Model, url))
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(data), "messages[0].content[0].image_url.url") {
			t.Errorf("%s: %s %s", url, resp.Status, data)
		}
	}
	if n := p.whole.Load() + p.ranges.Load(); n != 0 {
		t.Errorf("%d requests came from within", n)
	}
}
