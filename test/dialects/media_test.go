package dialects

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/media"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/enginemock"
)

// openEyes makes the model of a directory one of the family Qwen2-VL.
func openEyes(t *testing.T, dir string) {
	t.Helper()
	builtin, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	shown, _ := pipe.Family.Placeholder(media.Image)
	film, _ := pipe.Family.Placeholder(media.Video)
	for name, data := range map[string][]byte{
		"config.json": fmt.Appendf(nil, `{"vocab_size":%d,"max_position_embeddings":4096,"model_type":"qwen2_vl","architectures":["Qwen2VLForConditionalGeneration"],"image_token_id":%d,"video_token_id":%d}`,
			builtin.VocabSize(), shown, film),
		"preprocessor_config.json": []byte(`{"min_pixels":3136,"max_pixels":1003520,"patch_size":14,"merge_size":2,"temporal_patch_size":2}`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// picture is a data: URI of a picture that differs by seed.
func picture(t *testing.T, width, height, seed int) string {
	t.Helper()
	p := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		p.Set(i%width, i/width, color.RGBA{uint8(seed), uint8(i), uint8(seed >> 8), 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

// part is a part of a message: a text, or a picture by its URL.
func part(text string) map[string]any {
	if strings.HasPrefix(text, "data:") || strings.HasPrefix(text, "http:") {
		return map[string]any{"type": "image_url", "image_url": map[string]any{"url": text}}
	}
	return map[string]any{"type": "text", "text": text}
}

// chat sends a conversation of one message.
func (h *house) chat(fields map[string]any, parts ...string) answer {
	h.t.Helper()
	var content []any
	for _, p := range parts {
		content = append(content, part(p))
	}
	body := map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": content}}, "max_tokens": 8, "temperature": 0, "ignore_eos": true}
	for k, v := range fields {
		body[k] = v
	}
	return h.post("/v1/chat/completions", body, nil)
}

// visionEngines are engines that see. Pictures are routed by their content in front of them.
func visionEngines() map[string]struct {
	dialect enginemock.Dialect
	plan    plan
} {
	type visionEngine = struct {
		dialect enginemock.Dialect
		plan    plan
	}
	small := func(c *enginemock.Config) { c.ProcessorArgs = `{"max_pixels":25088}` }
	published := func(c *enginemock.Config) { c.KVEvents, c.KVReplay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0" }
	return map[string]visionEngine{
		"vllm":              {enginemock.VLLM, plan{sees: true}},
		"vllm, shipped":     {enginemock.VLLM, plan{sees: true, settings: []string{"PREPROCESS=engine"}}},
		"vllm, arguments":   {enginemock.VLLM, plan{sees: true, spec: `,mm-processor-kwargs={"max_pixels":25088}`, mimic: small}},
		"vllm of last year": {enginemock.VLLMLegacy, plan{sees: true}},
		"sglang":            {enginemock.SGLang, plan{sees: true}},
		"trtllm, asked":     {enginemock.TRTLLM, plan{sees: true, spec: ",media=image,media-keys=uuid"}},
		"trtllm":            {enginemock.TRTLLM, plan{sees: true, spec: ",media=image,media-keys=uuid", mimic: published}},
	}
}

// TestPictures: the same picture again is where it was, and as much of it is cached as was predicted; the same text about
// another picture shares nothing from the picture on. What is known of each engine's cache is what it has, block by block.
func TestPictures(t *testing.T) {
	for name, c := range visionEngines() {
		t.Run(name, func(t *testing.T) {
			h := build(t, c.dialect, c.plan)
			const before = "What does this picture show, and who would have made it? "
			after := strings.Repeat("Say it in a few words that everybody knows. ", 4)
			sizes := [][2]int{{224, 168}, {56, 56}, {300, 301}, {28, 600}}
			for round := range 2 {
				at := map[int]int{}
				for i, size := range sizes {
					for _, seed := range []int{10*i + 1, 10*i + 2} {
						shown := picture(t, size[0], size[1], seed)
						what := fmt.Sprintf("round %d, picture %d of %v", round, seed, size)
						a := h.chat(map[string]any{"stream": false}, before, shown, after)
						if a.status != http.StatusOK || a.err != "" {
							t.Fatalf("%s: %+v", what, a)
						}
						if off := a.cached - a.expected; off < -h.block || off > h.block {
							t.Errorf("%s: %d tokens were predicted, %d reported", what, a.expected, a.cached)
						}
						if least := 64; round == 0 && a.cached >= least || round == 1 && a.cached < least {
							t.Errorf("%s: %d tokens are cached", what, a.cached)
						}
						at[seed] = a.worker
						h.settled()
						b := h.chat(nil, before, shown, after)
						if b.worker != a.worker || b.cached < 64 || b.cached > b.expected+h.block {
							t.Errorf("%s again: %+v after %+v", what, b, a)
						}
						h.settled()
					}
				}
			}
		})
	}
}

// TestPicturesAside: adjacent pictures, pictures between texts, and turns after them.
func TestPicturesAside(t *testing.T) {
	for name, c := range visionEngines() {
		t.Run(name, func(t *testing.T) {
			h := build(t, c.dialect, c.plan)
			one, two := picture(t, 140, 140, 1), picture(t, 140, 140, 2)
			tail := strings.Repeat("and then some more of it ", 6)
			for i, parts := range [][]string{{one, two, tail}, {two, one, tail}, {one, tail, two, tail}, {one, one, tail}, {tail, one}} {
				first := h.chat(nil, parts...)
				h.settled()
				again := h.chat(nil, parts...)
				if first.status != http.StatusOK || again.worker != first.worker || again.cached < 48 || again.cached-again.expected > h.block || again.expected-again.cached > h.block {
					t.Errorf("%d: %+v, again %+v", i, first, again)
				}
				h.settled()
			}
			// What is kept apart by a salt is apart, also if it shows the same.
			if a := h.chat(map[string]any{"cache_salt": "tenant"}, one, two, tail); c.dialect == enginemock.VLLM && (a.status != http.StatusOK || a.cached != 0 || a.expected != 0) {
				t.Errorf("under a salt: %+v", a)
			}
		})
	}
}

// gallery serves a picture under every path, and counts the requests.
func gallery(t *testing.T, picture string) (url string, asked *atomic.Int64) {
	t.Helper()
	file, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(picture, "data:image/png;base64,"))
	if err != nil {
		t.Fatal(err)
	}
	asked = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.ServeContent(w, r, "picture.png", time.Time{}, bytes.NewReader(file))
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// TestSignedURLs: where pictures are decoded here, one behind signed URLs, which are other ones each time, and as
// data is one, for the engine too; where they are known by URL, each URL is another one. An engine that makes the
// prompt itself knows a picture by what it shows, whatever is said here.
func TestSignedURLs(t *testing.T) {
	tail := strings.Repeat("and then some more of it ", 6)
	for name, c := range visionEngines() {
		for way, decoding := range map[string]string{"pixels": "true", "url": "false"} {
			t.Run(name+", "+way, func(t *testing.T) {
				shown := picture(t, 224, 168, 1)
				url, _ := gallery(t, shown)
				c.plan.settings = append(slices.Clone(c.plan.settings), "FRONTEND_DECODING="+decoding, "MEDIA_ALLOW_PRIVATE=true")
				h := build(t, c.dialect, c.plan)
				first := h.chat(nil, url+"/a?signature=1", tail)
				h.settled()
				if first.status != http.StatusOK || first.cached != 0 {
					t.Fatalf("%+v", first)
				}
				for _, again := range []string{url + "/a?signature=2", url + "/elsewhere?signature=3", shown} {
					got := h.chat(nil, again, tail)
					switch found := got.worker == first.worker && got.cached >= 48; {
					case got.status != http.StatusOK || got.cached > got.expected+h.block || got.expected > got.cached+h.block:
						t.Errorf("%.60s: %+v", again, got)
					case found != (way == "pixels" || slices.Contains(c.plan.settings, "PREPROCESS=engine")):
						t.Errorf("%.60s: %+v after %+v", again, got, first)
					}
					h.settled()
				}
			})
		}
	}
}

// TestRefusedURLs: what may not be fetched from here is not fetched by an engine for a client either, and its
// client hears which part of the request that is.
func TestRefusedURLs(t *testing.T) {
	for name, c := range visionEngines() {
		t.Run(name, func(t *testing.T) {
			url, asked := gallery(t, picture(t, 56, 56, 1))
			h := build(t, c.dialect, c.plan)
			for _, at := range []string{url + "/picture.png", "http://169.254.169.254/latest/meta-data/", "http://[::ffff:169.254.169.254]/"} {
				if got := h.chat(nil, "What is it?", at); got.status != http.StatusBadRequest || !strings.Contains(got.err, "messages[0].content[1].image_url.url") || !strings.Contains(got.err, "may be fetched from") {
					t.Errorf("%s: %+v", at, got)
				}
			}
			if n := asked.Load(); n != 0 {
				t.Errorf("%d requests came from inside", n)
			}
		})
	}
}

// TestNamesOfClients: a client's name for a picture counts for that client only, and leads no other client to it.
func TestNamesOfClients(t *testing.T) {
	h := build(t, enginemock.VLLM, plan{sees: true})
	tail := strings.Repeat("and then some more of it ", 6)
	ask := func(url, uuid, salt string) answer {
		shown := map[string]any{"type": "image_url", "image_url": map[string]any{"url": url}, "uuid": uuid}
		fields := map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{shown, part(tail)}}}}
		if salt != "" {
			fields["cache_salt"] = salt
		}
		a := h.chat(fields)
		h.settled()
		return a
	}
	ask(picture(t, 140, 140, 1), "cat", "tenant")
	if a := ask(picture(t, 140, 140, 1), "cat", "tenant"); a.cached < 48 || a.expected < 48 {
		t.Errorf("by its name again: %+v", a)
	}
	if a := ask(picture(t, 140, 140, 3), "cat", "another"); a.cached != 0 || a.expected != 0 {
		t.Errorf("another client's cat: %+v", a)
	}
	// Without a salt a name does not count: the picture does.
	ask(picture(t, 140, 140, 4), "cat", "")
	if a := ask(picture(t, 140, 140, 5), "cat", ""); a.cached >= 16 {
		t.Errorf("another picture under a name without a salt: %+v", a)
	}
	if a := h.chat(nil, picture(t, 140, 140, 4), tail); a.cached < 48 || a.expected < 48 {
		t.Errorf("without its name it is another one: %+v", a)
	}
}

// TestPicturesOfEngines: where only the engine knows the model, its own word of a prompt is as good.
func TestPicturesOfEngines(t *testing.T) {
	h := build(t, enginemock.VLLM, plan{sees: true, spec: ",mode=pass", settings: []string{"PREPROCESS=engine", "MODEL_PATH="}})
	tail := strings.Repeat("and then some more of it ", 6)
	for i, size := range [][2]int{{224, 168}, {56, 56}, {300, 301}} {
		for seed := range 2 {
			shown := picture(t, size[0], size[1], 10*i+seed)
			a := h.chat(nil, "What is this? ", shown, tail)
			h.settled()
			b := h.chat(nil, "What is this? ", shown, tail)
			if a.status != http.StatusOK || a.cached >= 16 || b.worker != a.worker || b.cached < 48 || b.cached > b.expected+h.block || b.expected > b.cached+h.block {
				t.Errorf("picture %d of %v: %+v, again %+v", seed, size, a, b)
			}
			h.settled()
		}
	}
}

// TestFaceless: an engine whose events do not say which pictures blocks show is not believed about them, and said to be so.
func TestFaceless(t *testing.T) {
	h := build(t, enginemock.VLLMLegacy, plan{servers: 1, sees: true, mimic: func(c *enginemock.Config) { c.Features.ExtraKeys = enginemock.Off }})
	before, tail := strings.Repeat("What is this, and why? ", 10), strings.Repeat("and then some more of it ", 6)
	ask := func(seed int) answer { return h.chat(nil, before, picture(t, 300, 301, seed), tail) }
	first := ask(1)
	h.eventually(func() error {
		// Two are of what the engine was asked when it was opened.
		if n := len(h.index()[first.worker]); n < 2+3 {
			return fmt.Errorf("%d blocks are known before the picture", n)
		}
		return nil
	})
	again, other := ask(1), ask(2)
	for what, a := range map[string]answer{"the same picture": again, "another picture": other} {
		if a.status != http.StatusOK || a.expected == 0 || a.expected > 80 {
			t.Errorf("%s: %+v; the text before it has about 60 tokens", what, a)
		}
	}
	h.eventually(func() error {
		res, err := h.client.Get(h.url + "/health")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		said, err := io.ReadAll(res.Body)
		if err != nil || !bytes.Contains(said, []byte("media_unknown")) {
			return fmt.Errorf("%s, %w", said, err)
		}
		return nil
	})
}

// TestConversationsApart: two conversations about two pictures, word for word the same, share what is before the picture and
// nothing else, turn by turn.
func TestConversationsApart(t *testing.T) {
	for name, c := range visionEngines() {
		t.Run(name, func(t *testing.T) {
			p := c.plan
			p.servers = 1                // so that all could be shared
			p.spec += ",media-check=off" // so that blocks are those of the conversations
			h := build(t, c.dialect, p)
			blocks := func() int {
				index := h.index()[0]
				maps.DeleteFunc(index, func(k string, _ bool) bool { return h.engines[0].own[k] })
				return len(index)
			}
			h.settled()
			asked := blocks() // of what the engine was asked when it was opened
			const before = "Look at this closely before you say anything about it at all. "
			words := strings.Repeat("What else is there to see, and why would it be? ", 3)
			said := []map[string]any{{"role": "assistant", "content": "A picture, as far as can be told."}, {"role": "user", "content": words}}
			var first [2]int // blocks that a conversation has by its first and its second turn
			for which := range 2 {
				messages := []any{map[string]any{"role": "user", "content": []any{part(before), part(picture(t, 140, 112, which)), part(words)}}}
				for turn := range 2 {
					had := blocks()
					a := h.chat(map[string]any{"messages": messages})
					h.settled()
					what := fmt.Sprintf("conversation %d, turn %d", which, turn)
					if off := a.cached - a.expected; a.status != http.StatusOK || off < -h.block || off > h.block {
						t.Fatalf("%s: %+v", what, a)
					}
					if turn == 1 && a.cached < 48 || turn == 0 && a.cached > 16 {
						t.Errorf("%s: %d tokens are cached", what, a.cached)
					}
					switch made := blocks() - had; {
					case which == 0:
						first[turn] = made
					case turn == 0 && made < first[turn]-1, turn == 1 && made != first[turn]:
						t.Errorf("%s: %d blocks are its own, the other conversation has %d", what, made, first[turn])
					}
					for _, m := range said {
						messages = append(messages, m)
					}
				}
			}
			if blocks() == asked {
				t.Error("nothing is known")
			}
		})
	}
}

// TestShippedPictures: what one vLLM's processor made of a picture goes to the one that is chosen; one that does not take
// it has the request as its client wrote it, and says so.
func TestShippedPictures(t *testing.T) {
	h := build(t, enginemock.VLLM, plan{sees: true, settings: []string{"PREPROCESS=engine"}})
	processed := func() (n int) {
		for _, e := range h.engines {
			n += e.Processed()
		}
		return n
	}
	tail := strings.Repeat("and then some more of it ", 6)
	before := processed()
	for seed := range 4 {
		if a := h.chat(nil, picture(t, 140, 140, seed), tail); a.status != http.StatusOK || a.finish != "length" {
			t.Errorf("picture %d: %+v", seed, a)
		}
	}
	if n := processed() - before; n != 4 {
		t.Errorf("%d of 4 requests came with what a processor made", n)
	}
	const fetched = `penstock_xfer_transfers_total{outcome="ok",side="owner",transport="mem"} 4`
	if !strings.Contains(h.get("/metrics"), fetched) {
		t.Error("the workers did not fetch it")
	}
	for _, e := range h.engines {
		if err := e.Faults().Set(enginemock.Fault{Kind: enginemock.FaultFeatures}); err != nil {
			t.Fatal(err)
		}
	}
	before = processed()
	for seed := range 4 {
		if a := h.chat(nil, picture(t, 140, 140, 10+seed), tail); a.status != http.StatusOK || a.finish != "length" {
			t.Errorf("picture %d, refused: %+v", seed, a)
		}
	}
	if processed() != before {
		t.Error("what was refused is counted")
	}
	h.eventually(func() error {
		if !strings.Contains(h.get("/v1/router/workers"), "features_refused") {
			return fmt.Errorf("no worker has the warning features_refused")
		}
		return nil
	})
}

// TestUnshippedPictures: a setting keeps what processors make where it is.
func TestUnshippedPictures(t *testing.T) {
	h := build(t, enginemock.VLLM, plan{sees: true, settings: []string{"PREPROCESS=engine", "MM_TRANSFER=off"}})
	before := h.engines[0].Processed() + h.engines[1].Processed()
	if a := h.chat(nil, picture(t, 140, 140, 1), "what is this?"); a.status != http.StatusOK || a.finish != "length" {
		t.Errorf("%+v", a)
	}
	if n := h.engines[0].Processed() + h.engines[1].Processed(); n != before {
		t.Errorf("%d requests came with what a processor made", n-before)
	}
}

// TestFilms: what is not decoded here goes to SGLang as its client wrote it.
func TestFilms(t *testing.T) {
	films := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isommp42 and so on")
	}))
	defer films.Close()
	var fetched atomic.Int64
	h := build(t, enginemock.SGLang, plan{sees: true, spec: ",media=image+video", settings: []string{"MEDIA_ALLOW_PRIVATE=true"}, mimic: func(c *enginemock.Config) {
		c.Fetch = func(context.Context, string) ([]byte, error) {
			fetched.Add(1)
			return nil, errors.New("no decoder of films")
		}
	}})
	ask := func(url string) answer {
		shown := map[string]any{"type": "video_url", "video_url": map[string]any{"url": url}}
		return h.chat(map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{shown, part("what is this?")}}}})
	}
	if a := ask(films.URL + "/film.mp4"); a.status != http.StatusBadRequest || fetched.Load() != 1 {
		t.Errorf("the engine was not asked: %+v", a)
	}
	if a := ask("http://169.254.169.254/film.mp4"); a.status < 400 || fetched.Load() != 1 {
		t.Errorf("what may not be fetched was asked of the engine: %+v", a)
	}
}
