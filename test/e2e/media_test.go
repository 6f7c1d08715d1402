package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/image/bmp"
)

// picture is one of noise, which differs by seed.
func picture(seed uint64, width, height int) *image.NRGBA {
	rng := rand.New(rand.NewPCG(seed, 2))
	p := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range p.Pix {
		p.Pix[i] = byte(rng.Uint32())
		if i%4 == 3 {
			p.Pix[i] = 255
		}
	}
	return p
}

// pngOf is a picture as a file.
func pngOf(t *testing.T, p image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func dataURI(mime string, file []byte) string {
	return "data:" + mime + ";base64," + base64.StdEncoding.EncodeToString(file)
}

// shown is a part of a message that shows what is behind a URL.
func shown(kind, url string) map[string]any {
	return map[string]any{"type": kind + "_url", kind + "_url": map[string]any{"url": url}}
}

// said is a part of a message that says something.
func said(text string) map[string]any { return map[string]any{"type": "text", "text": text} }

// showing is a greedy request of one message.
func showing(maxTokens int, parts ...map[string]any) map[string]any {
	return map[string]any{
		"model": "penstock-tiny", "max_tokens": maxTokens, "temperature": 0, "ignore_eos": true,
		"messages": []any{map[string]any{"role": "user", "content": parts}},
	}
}

// sight is what a router says of a prompt that shows something.
type sight struct {
	Tokens   int    `json:"prompt_tokens"`
	TextOnly string `json:"text_only"`
	Media    []struct {
		Kind, Key     string
		Start, Tokens int
	} `json:"media"`
}

// look asks where a request would go, and what it shows.
func (s *server) look(request map[string]any) sight {
	s.t.Helper()
	resp, data := s.do(http.MethodPost, "/v1/router/explain", request)
	var out sight
	if err := json.Unmarshal(data, &out); err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("explain: %s %v: %s", resp.Status, err, data)
	}
	return out
}

// stores are the blocks that workers say they store, as a router hears of them.
type stores struct {
	s  *server
	mu struct {
		sync.Mutex
		seqs, blocks map[uint64][]string // by worker, in order
		bad          []string
	}
}

// follow listens to cache events until the test ends.
func (s *server) follow() *stores {
	s.t.Helper()
	st := &stores{s: s}
	st.mu.seqs, st.mu.blocks = map[uint64][]string{}, map[uint64][]string{}
	ctx, cancel := context.WithCancel(context.Background())
	req := must(http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/v1/router/events", nil))(s.t)
	resp := must(s.client.Do(req))(s.t)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if event, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				st.hear(event)
			}
		}
	})
	s.t.Cleanup(func() { cancel(); reader.Wait() })
	return st
}

func (st *stores) hear(event string) {
	var e struct {
		WorkerID      uint64 `json:"worker_id"`
		Kind, Outcome string
		Dropped       int
		Seqs, Blocks  []string
	}
	err := json.Unmarshal([]byte(event), &e)
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case err != nil || e.Dropped > 0 || e.Outcome != "apply":
		st.mu.bad = append(st.mu.bad, event)
	case e.Kind == "stored":
		st.mu.seqs[e.WorkerID] = append(st.mu.seqs[e.WorkerID], e.Seqs...)
		st.mu.blocks[e.WorkerID] = append(st.mu.blocks[e.WorkerID], e.Blocks...)
	}
}

// take returns what a worker has stored since the last time, n blocks, by the names of the blocks
// and of all up to them.
func (st *stores) take(worker uint64, n int) (blocks, seqs []string) {
	st.s.t.Helper()
	st.s.eventually(fmt.Sprintf("worker %d stores %d blocks", worker, n), func() bool {
		st.mu.Lock()
		defer st.mu.Unlock()
		return len(st.mu.seqs[worker]) >= n
	})
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.mu.seqs[worker]) != n || len(st.mu.blocks[worker]) != n || len(st.mu.bad) > 0 {
		st.s.t.Errorf("worker %d stored %v, want %d blocks; odd: %q", worker, st.mu.seqs[worker], n, st.mu.bad)
	}
	blocks, seqs = st.mu.blocks[worker], st.mu.seqs[worker]
	st.mu.blocks[worker], st.mu.seqs[worker] = nil, nil
	return blocks, seqs
}

// film is a GIF of two pictures.
func film(t *testing.T, seed uint64) string {
	t.Helper()
	g := &gif.GIF{Delay: []int{10, 10}}
	for i := range uint64(2) {
		p := image.NewPaletted(image.Rect(0, 0, 56, 56), color.Palette{color.Black, color.White, color.NRGBA{255, 0, 0, 255}, color.NRGBA{0, 0, 255, 255}})
		rng := rand.New(rand.NewPCG(seed, i))
		for j := range p.Pix {
			p.Pix[j] = byte(rng.IntN(4))
		}
		g.Image = append(g.Image, p)
	}
	var b bytes.Buffer
	if err := gif.EncodeAll(&b, g); err != nil {
		t.Fatal(err)
	}
	return dataURI("image/gif", b.Bytes())
}

// sound is half a second of noise as a WAV file.
func sound(seed uint64) string {
	const samples = 8000
	b := []byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00")
	binary.LittleEndian.PutUint32(b[4:], 36+2*samples)
	binary.LittleEndian.PutUint32(b[40:], 2*samples)
	rng := rand.New(rand.NewPCG(seed, 3))
	for range samples {
		b = binary.LittleEndian.AppendUint16(b, uint16(rng.Uint32()))
	}
	return dataURI("audio/wav", b)
}

// TestPicturesShareNoBlock: of two conversations about two pictures, with the same words before and
// after, the workers' caches share the blocks before the pictures and no other, wherever in a block the
// pictures begin and end, and of videos and sounds likewise. What is cached of the one does not
// show in the answer about the other.
func TestPicturesShareNoBlock(t *testing.T) {
	s := start(t)
	st := s.follow()
	const output = 6
	type pair struct {
		kind     string
		one, two string
	}
	pictures := pair{
		"image",
		dataURI("image/png", pngOf(t, picture(1, 84, 112))),
		dataURI("image/png", pngOf(t, picture(2, 84, 112))),
	}
	var pairs []pair
	for range 16 { // wherever in a block it begins
		pairs = append(pairs, pictures)
	}
	pairs = append(pairs, pair{"video", film(t, 1), film(t, 2)}, pair{"audio", sound(1), sound(2)})
	starts := map[int]bool{}
	differ := 0
	for i, p := range pairs {
		// Each round begins with words of its own, so that nothing of it is cached.
		before := said(fmt.Sprintf("In round %02d, look at this:%s", i, strings.Repeat(" and", i)))
		after := said("Which gate is it, and does the water rise behind it? Say it in a few words that everybody knows.")
		one, two := showing(output, before, shown(p.kind, p.one), after), showing(output, before, shown(p.kind, p.two), after)
		a, b := s.look(one), s.look(two)
		if len(a.Media) != 1 || len(b.Media) != 1 || a.Media[0].Key == b.Media[0].Key || a.Media[0].Start != b.Media[0].Start || a.Media[0].Tokens != b.Media[0].Tokens {
			t.Fatalf("%s: %+v and %+v", p.kind, a, b)
		}
		starts[a.Media[0].Start%s.ready.BlockSize] = true
		// All that is computed for an answer but its last token.
		stored := (a.Tokens + output - 1) / s.ready.BlockSize
		alike := a.Media[0].Start / s.ready.BlockSize
		if alike == 0 || alike+2 > stored {
			t.Fatalf("%d of %d blocks are before the %s: the test proves nothing", alike, stored, p.kind)
		}

		answers := map[string]answer{}
		ask := func(name string, request map[string]any, worker string) {
			answers[name] = s.complete("/v1/chat/completions", request, "x-worker-instance-id", worker)
			if got := answers[name]; got.status != http.StatusOK || got.output != output || got.prompt != a.Tokens || got.worker != worker {
				t.Fatalf("%s %d, %s: %+v", p.kind, i, name, got)
			}
		}
		ask("first", one, "1")
		blocks, seqs := st.take(1, stored)
		ask("second, elsewhere", two, "2")
		otherBlocks, otherSeqs := st.take(2, stored)
		for k := range stored {
			if same := seqs[k] == otherSeqs[k]; same != (k < alike) {
				t.Errorf("%s at token %d: block %d of %d is the same in both conversations: %v", p.kind, a.Media[0].Start, k, stored, same)
			}
			if k >= alike && slices.Contains(seqs, otherSeqs[k]) {
				t.Errorf("%s: block %d of one conversation is another of the other one", p.kind, k)
			}
			if holds := k >= alike && k*s.ready.BlockSize < a.Media[0].Start+a.Media[0].Tokens; holds && blocks[k] == otherBlocks[k] {
				t.Errorf("%s: block %d holds it, and is called the same in both", p.kind, k)
			}
		}
		ask("second, beside the first", two, "1")
		if _, rest := st.take(1, stored-alike); !slices.Equal(rest, otherSeqs[alike:]) {
			t.Errorf("%s: beside the first %v are stored, elsewhere %v", p.kind, rest, otherSeqs[alike:])
		}
		if got := answers["second, beside the first"]; got.cached != alike*s.ready.BlockSize || got.text != answers["second, elsewhere"].text {
			t.Errorf("%s: beside the first %+v, elsewhere %+v, want %d blocks cached", p.kind, got, answers["second, elsewhere"], alike)
		}
		ask("first again", one, "1")
		if got, want := answers["first again"], (a.Tokens-1)/s.ready.BlockSize*s.ready.BlockSize; got.cached != want || got.text != answers["first"].text {
			t.Errorf("%s: again %+v, want %d tokens cached and the answer %+v", p.kind, got, want, answers["first"])
		}
		if answers["first"].text != answers["second, elsewhere"].text {
			differ++
		}
	}
	if len(starts) != s.ready.BlockSize {
		t.Errorf("the pictures begin at %d places of a block", len(starts))
	}
	if differ < len(pairs)*3/4 {
		t.Errorf("%d of %d answers depend on what is shown", differ, len(pairs))
	}
	s.idle()
}

// gallery serves files by their paths, whatever the query, and counts the requests for each.
type gallery struct {
	url string
	mu  struct {
		sync.Mutex
		asked map[string]int // by path
	}
}

func newGallery(t *testing.T, files map[string][]byte) *gallery {
	t.Helper()
	g := &gallery{}
	g.mu.asked = map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.mu.asked[r.URL.Path]++
		g.mu.Unlock()
		file, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(file))
	}))
	t.Cleanup(server.Close)
	g.url = server.URL
	return g
}

// count returns how often a file was asked for, or a part of it.
func (g *gallery) count(path string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.asked[path]
}

// TestOnePictureManyNames: by pixels a picture is the same behind two signed URLs, in a data: URI and in another
// file, and a request with the one finds what was computed for a request with the other; by
// bytes the other file is another one, and by URL each URL.
func TestOnePictureManyNames(t *testing.T) {
	t.Parallel()
	p := picture(1, 112, 112)
	file, other := pngOf(t, p), bmpOf(t, p)
	g := newGallery(t, map[string][]byte{"/picture.png": file, "/picture.bmp": other, "/lossy.jpg": jpegOf(t, p)})
	names := []string{
		g.url + "/picture.png?signature=5f3a&expires=1", g.url + "/picture.png?signature=77c0&expires=2",
		dataURI("image/png", file), g.url + "/picture.bmp", dataURI("image/bmp", other),
	}
	for _, tc := range []struct {
		name     string
		settings []string
		same     [][]int // the names that are one object
	}{
		{"pixels", []string{"frontend-decoding=true"}, [][]int{{0, 1, 2, 3, 4}}},
		{"pixels, as frontends do", []string{"media-identity=pixels"}, [][]int{{0, 1, 2, 3, 4}}},
		{"bytes", []string{"media-identity=bytes"}, [][]int{{0, 1, 2}, {3, 4}}},
		{"url", nil, [][]int{{0}, {1}, {2}, {3}, {4}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, append(tc.settings, "media-allow-private=true")...)
			before, after := said("Here is a gate:"), said(strings.Repeat("Is the water behind it high or low? ", 4))
			keys := map[string]int{}
			for n, same := range tc.same {
				var first answer
				for i, name := range same {
					request := showing(8, before, shown("image", names[name]), after)
					at := s.look(request)
					if len(at.Media) != 1 || at.TextOnly != "" {
						t.Fatalf("name %d: %+v", name, at)
					}
					if k, known := keys[at.Media[0].Key]; known && k != n {
						t.Errorf("names %d and %d have one key", tc.same[k][0], name)
					} else if known != (i > 0) {
						t.Errorf("name %d has a key of its own", name)
					}
					keys[at.Media[0].Key] = n
					got := s.complete("/v1/chat/completions", request)
					full := (got.prompt - 1) / s.ready.BlockSize * s.ready.BlockSize
					switch {
					case got.status != http.StatusOK || got.prompt != at.Tokens:
						t.Fatalf("name %d: %+v", name, got)
					case i == 0 && got.cached > at.Media[0].Start:
						t.Errorf("name %d is new, and %d tokens were cached", name, got.cached)
					case i > 0 && (got.cached != full || got.worker != first.worker || got.text != first.text):
						t.Errorf("name %d: %+v after %+v, want %d tokens cached", name, got, first, full)
					}
					if i == 0 {
						first = got
						s.eventually("the router knows the blocks", func() bool {
							for _, c := range explainOf(s, request) {
								if fmt.Sprint(c.WorkerID) == got.worker {
									return c.Overlap.Device == got.prompt/s.ready.BlockSize
								}
							}
							return false
						})
					}
				}
				again := s.complete("/v1/chat/completions", showing(8, before, shown("image", names[same[0]]), after))
				if again.worker != first.worker || again.text != first.text || again.cached < again.prompt-s.ready.BlockSize {
					t.Errorf("name %d again: %+v after %+v", same[0], again, first)
				}
			}
			// What shows almost the same is another picture.
			lossy := s.look(showing(8, before, shown("image", g.url+"/lossy.jpg"), after))
			if len(lossy.Media) != 1 {
				t.Fatalf("almost the same picture: %+v", lossy)
			}
			if _, known := keys[lossy.Media[0].Key]; known {
				t.Error("almost the same picture has the key of another")
			}
			s.idle()
		})
	}
}

// bmpOf is a picture in another file.
func bmpOf(t *testing.T, p image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := bmp.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// jpegOf is almost a picture.
func jpegOf(t *testing.T, p image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, p, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
