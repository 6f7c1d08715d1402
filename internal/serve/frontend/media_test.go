package frontend

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/keys"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/media/fetch"
	"penstock/internal/media/pixel"
	"penstock/internal/media/probe"
)

// gallery is the source of media, and counts what it lends.
type gallery struct {
	pictures map[string][]byte
	mu       struct {
		sync.Mutex
		asked int
		lent  map[string]bool
		most  int
		last  string // the client charged for the last fetch
	}
}

func (g *gallery) ask(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.asked++
	g.mu.last = fetch.ClientOf(ctx)
}

func (g *gallery) client() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.last
}

func (g *gallery) FetchSize(ctx context.Context, url string) (resolve.FileInfo, error) {
	b, _, err := g.FetchFile(ctx, url)
	if err != nil {
		return resolve.FileInfo{}, err
	}
	return g.ReadHeader(b)
}

// Check refuses hosts called forbidden.
func (g *gallery) Check(url string) error {
	if strings.Contains(url, "forbidden") {
		return fault.New(fault.Forbidden, "its address is none that may be fetched from")
	}
	return nil
}

func (g *gallery) FetchFile(ctx context.Context, url string) ([]byte, func(), error) {
	g.ask(ctx)
	if strings.Contains(url, "slow") {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	if strings.Contains(url, "late") {
		time.Sleep(time.Second) // of the bubble: all other pending work comes first
	}
	if strings.Contains(url, "forbidden") {
		return nil, nil, fault.New(fault.Forbidden, "its address is none that may be fetched from")
	}
	if b, ok := g.pictures[url]; ok {
		return b, func() {}, nil
	}
	if strings.Contains(url, "inner") {
		return nil, nil, fault.New(fault.Forbidden, "its address is none that may be fetched from")
	}
	return nil, nil, fault.New(fault.Invalid, "its host answered with status 404")
}

func (g *gallery) ParseData(uri string) ([]byte, error) {
	g.ask(context.Background())
	d, err := fetch.ParseData(uri, 1<<20)
	return d.Bytes, err
}

func (g *gallery) ReadHeader(file []byte) (resolve.FileInfo, error) {
	t, size, err := pixel.DecodeImage(file, pixel.Limits{})
	if err != nil || t.IsZero() {
		return resolve.FileInfo{}, &fault.Error{Code: fault.Invalid, Message: "no picture", Err: &probe.Error{Reason: "no picture"}}
	}
	return resolve.FileInfo{Kind: media.Image, Size: size, Oriented: true}, nil
}

func (g *gallery) Lend(data []byte) (string, func(), error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.lent == nil {
		g.mu.lent = map[string]bool{}
	}
	g.mu.most++
	name := fmt.Sprint("segment-", g.mu.most)
	g.mu.lent[name] = true
	return name, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.mu.lent, name)
	}, nil
}

// held returns how many segments are lent.
func (g *gallery) held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.lent)
}

func painted(t *testing.T, w, h int, c color.RGBA) []byte {
	t.Helper()
	p := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		p.SetRGBA(i%w, i/w, c)
	}
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// inGallery is a world whose models have the built-in vocabulary, and whose frontend resolves media.
func inGallery(t *testing.T, cfg Config, test func(t *testing.T, w *world, g *gallery), change ...func(*Deps)) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	if pipe.Family == nil {
		t.Fatal("the built-in vocabulary shows no media: " + pipe.NoFamilyReason)
	}
	g := &gallery{pictures: map[string][]byte{
		"http://a/red":  painted(t, 112, 112, color.RGBA{200, 0, 0, 255}),
		"http://a/blue": painted(t, 112, 140, color.RGBA{0, 0, 200, 255}),
	}}
	look, err := resolve.New(resolve.Config{MaxObjects: 8}, g, g)
	if err != nil {
		t.Fatal(err)
	}
	inWorldWith(t, cfg, func(d *Deps) {
		d.Media = look
		for _, f := range change {
			f(d)
		}
	}, func(t *testing.T, w *world) {
		w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) { return pipe, nil }
		test(t, w, g)
		synctest.Wait()
		if n := g.held(); n != 0 {
			t.Errorf("%d segments are still lent", n)
		}
	})
}

// placeOf returns the placeholder token of an image in prompts of the model "bytes".
func placeOf(t *testing.T, w *world) int {
	t.Helper()
	got := w.post("/tokenize", strings.Replace(showing("", "http://a/red"), `"max_tokens":4,`, "", 1))
	var prompt struct{ Tokens []int }
	if err := json.Unmarshal([]byte(got.body), &prompt); err != nil {
		t.Fatalf("%v: %v", got, err)
	}
	for i, token := range prompt.Tokens[1:] {
		if token == prompt.Tokens[i] && token > 255 { // not a byte of text
			return token
		}
	}
	t.Fatalf("no picture in %v", prompt.Tokens)
	return 0
}

// sees makes a card of a model that takes images with tokens.
func sees(c *engine.Card) {
	c.VocabSize, c.EOS, c.ContextLength = 1<<20, nil, 4096
	c.Media, c.AcceptsObjects = []string{"image"}, true
}

// decodes makes a card of a model whose images are decoded by frontends.
func decodes(c *engine.Card) {
	sees(c)
	c.MediaDecoder = &engine.MediaDecoder{Transfer: "shm"}
}

// looks makes a card of a model whose engines take media in passthrough requests.
func looks(c *engine.Card) {
	sees(c)
	c.AcceptsObjects, c.MediaKeys, c.PassthroughPaths = false, engine.MediaKeysUUID, strings.Fields(allPaths)
}

// showing is a chat request with images.
func showing(with string, urls ...string) string {
	parts := `{"type":"text","text":"What is this?"}`
	for _, u := range urls {
		parts += `,{"type":"image_url","image_url":{"url":"` + u + `"}}`
	}
	return `{"model":"bytes","max_tokens":4` + with + `,"messages":[{"role":"user","content":[` + parts + `]}]}`
}

const chats = "/v1/chat/completions"

// TestAttached: an engine that takes media with tokens gets the expanded prompt with the position and
// key of each object, and so does the router.
func TestAttached(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		s := constant("ok")
		w.worker(7, s, sees)
		uri := "data:image/png;base64," + base64.StdEncoding.EncodeToString(g.pictures["http://a/red"])
		got := w.post(chats, showing(`,"temperature":0`, "http://a/red", uri, "http://a/blue"))
		if got.status != 200 {
			t.Fatal(got)
		}
		req, asked := s.seen()[0], w.router.routed()[0]
		want := []media.Key{media.URLKey("http://a/red", 0), media.BytesKey(g.pictures["http://a/red"]), media.URLKey("http://a/blue", 0)}
		if len(req.Objects) != 3 || len(req.Media) != 3 {
			t.Fatalf("%d objects in %d places", len(req.Objects), len(req.Media))
		}
		for i, o := range req.Objects {
			if o.Key != want[i] || req.Media[i].Hash != want[i].Hash || req.Media[i].Digest != want[i].Digest || o.Source != []string{"http://a/red", uri, "http://a/blue"}[i] {
				t.Errorf("object %d: %+v at %+v", i, o.Key, req.Media[i])
			}
		}
		if n := req.Media[0].End - req.Media[0].Start; n != 16 || req.Media[2].End-req.Media[2].Start != 20 {
			t.Errorf("a picture of 112 by 112 pixels has %d tokens: %+v", n, req.Media)
		}
		if !slices.Equal(asked.Tokens, req.Prompt) || !slices.Equal(asked.Media, req.Media) {
			t.Error("the router was asked about another prompt")
		}
		if v := w.metric(`frontend_media_total{kind="image",model="bytes"}`); v != "3" {
			t.Errorf("%s images are counted", v)
		}
	})
}

// TestRefusedMedia: an error about unsupported media names their part.
func TestRefusedMedia(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, constant("ok"), sees)
		w.worker(8, constant("ok"), func(c *engine.Card) { sees(c); c.Name, c.Aliases, c.Media, c.AcceptsObjects = "text", nil, nil, false })
		many := slices.Repeat([]string{"http://a/red"}, 1000)
		pad := strconv.Itoa(placeOf(t, w))
		const url = "messages[0].content[1].image_url.url"
		for _, c := range []struct {
			path, body, param, says string
		}{
			{chats, strings.ReplaceAll(showing("", "http://a/red"), `"bytes"`, `"text"`), "messages[0].content[1]", "send text only to the model 'text'"},
			{chats, strings.ReplaceAll(showing("", "http://a/red"), "image_url", "video_url"), "messages[0].content[1]", "send text and image"},
			{chats, showing("", "http://a/none"), url, "404"},
			{chats, showing("", "http://slow/"), "messages[0].content[1].image_url.url", "within the time"},
			{chats, showing("", "file:///etc/passwd"), url, "http or https"},
			{chats, showing("", "data:image/png;base64,AAAA"), url, "no picture"},
			{chats, showing("", many[:9]...), "messages[0].content[9]", "a request may have 8"},
			{chats, showing("", many...), "messages[0].content[257]", "at most 256"},
			{chats, showing(`,"mm_processor_kwargs":{"max_pixels":1}`, "http://a/red"), "mm_processor_kwargs", "leave it out"},
			{chats, `{"model":"bytes","mm_processor_kwargs":{"x":1},"messages":[{"role":"user","content":"x"}]}`, "mm_processor_kwargs", "without media"},
			{chats, `{"model":"bytes","messages":[{"role":"user","content":"a"},{"role":"user","content":"see <|image|>"}]}`, "messages[1]", "stands for media"},
			{chats, strings.Replace(showing("", "http://a/red"), "What is this?", "<|image|>", 1), "messages[0]", "stands for media"},
			{chats, `{"model":"bytes","messages":[{"role":"user","content":[{"type":"text","text":"\\\u005cn \u003c|image|>"}]}]}`, "messages[0]", "stands for media"},
			{chats, `{"model":"bytes","chat_template_kwargs":{"x":{"<\u007Cimage|>":"","y":1}},"messages":[{"role":"user","content":"x"}]}`, "chat_template_kwargs", "stands for media"},
			{chats, `{"model":"bytes","tools":[{"type":"function","function":{"name":"f","description":"\u00e9 <|im\u0061ge|>"}}],"messages":[{"role":"user","content":"x"}]}`, "tools", "stands for media"},
			{chats, `{"model":"bytes","messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":\"\\u003c|image|\u003e\"}"}}]},{"role":"tool","tool_call_id":"1","content":"y"}]}`, "messages[1]", "stands for media"},
			{chats, `{"model":"bytes","messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"<|image|>","content":"y"}]}`, "messages[2]", "stands for media"},
			{"/v1/completions", `{"model":"bytes","prompt":[65,` + pad + `]}`, "prompt", "index 1"},
			{"/v1/completions", `{"model":"bytes","prompt":[[65],[` + pad + `]]}`, "prompt", "stands for media"},
			{chats, `{"model":"bytes","nvext":{"token_data":[65,` + pad + `]},"messages":[{"role":"user","content":"x"}]}`, "nvext.token_data", "index 1"},
			{chats, showing(`,"nvext":{"token_data":[65]}`, "http://a/red"), "nvext.token_data", "leave one"},
			{"/v1/completions", `{"model":"bytes","prompt":"see <|image|>"}`, "prompt", "send messages"},
			{"/tokenize", strings.Replace(showing("", "http://a/none"), `"max_tokens":4,`, "", 1), url, "404"},
			{"/v1/messages/count_tokens", `{"model":"bytes","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://a/none"}}]}]}`, "", "404"},
			{"/v1/messages/count_tokens", `{"model":"text","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://a/red"}}]}]}`, "", "text only"},
		} {
			got := w.post(c.path, c.body)
			var e struct {
				Error struct{ Message, Param string }
			}
			if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != 400 || e.Error.Param != c.param || !strings.Contains(e.Error.Message, c.says) {
				t.Errorf("%.150s: %d %s, want a refusal of %q that says %q", c.body, got.status, got.body, c.param, c.says)
			}
		}
		if v := w.metric(`frontend_routing_text_only_total{model="bytes",reason="dims_unavailable"}`); v != "3" {
			t.Errorf("%s requests are counted by their text", v)
		}
	})
}

// TestCountedMedia: the endpoints that count tokens also count media.
func TestCountedMedia(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, constant("ok"), decodes)
		got := w.post("/v1/messages/count_tokens", `{"model":"bytes","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://a/red"}}]}]}`)
		if want := `{"input_tokens":20}` + "\n"; got.status != 200 || got.body != want { // <|begin|><|user|>, 16, <|end|><|assistant|>
			t.Errorf("%v", got)
		}
		q, err := openai.Decode(api.Chat, []byte(showing("", "http://a/blue")))
		if err != nil {
			t.Fatal(err)
		}
		p, err := w.f.MakePrompt(t.Context(), q)
		if err != nil || len(p.Media) != 1 || p.Media[0].End-p.Media[0].Start != 20 || p.Objects[0].Size.Height != 140 {
			t.Errorf("%+v %v", p, err)
		}
	})
}

// TestLeases: media lent for a request are returned when it ends, in every way, and not before: a
// worker that continues it finds them.
func TestLeases(t *testing.T) {
	body := showing(`,"stream":true`, "http://a/red", "http://a/blue")
	dies := func() *script { return &script{say: func(int) string { return "abcdef" }, dieAfter: 2} }
	for _, c := range []struct {
		name    string
		workers []*script
		body    string
		status  int
		lent    int
	}{
		{"answered", []*script{constant("ok")}, body, 200, 2},
		{"moved", []*script{dies(), constant("abcdef")}, body, 200, 2},
		{"broken", []*script{dies()}, body, 200, 2},
		{"refused by the engine", []*script{{refuse: fault.New(fault.Invalid, "no")}}, body, 400, 2},
		{"asked where it would go", []*script{constant("ok")}, showing(`,"nvext":{"annotations":["query_instance_id"]}`, "http://a/red"), 200, 1},
		{"one of them bad", []*script{constant("ok")}, showing("", "http://a/red", "http://a/late"), 400, 1},
		{"too long", []*script{constant("ok")}, strings.Replace(body, "What is this?", strings.Repeat("x y ", 5000), 1), 400, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inGallery(t, Config{MigrationWait: new(time.Second)}, func(t *testing.T, w *world, g *gallery) {
				for i, s := range c.workers {
					s.veto = func(r *engine.Request) error {
						if g.held() != len(r.Objects) || r.Objects[0].Tensor.Place == "" || r.Objects[1].Source != "http://a/blue" {
							t.Errorf("attempt %d: %d segments are lent for %+v", r.Attempt, g.held(), r.Objects)
						}
						return nil
					}
					w.worker(kv.WorkerID(7+i), s, decodes)
				}
				if got := w.post(chats, c.body); got.status != c.status {
					t.Errorf("%v", got)
				}
				synctest.Wait()
				if g.held() != 0 || g.mu.most < c.lent {
					t.Errorf("%d of %d segments are lent", g.held(), g.mu.most)
				}
			})
		})
	}
	t.Run("gone", func(t *testing.T) {
		inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
			w.worker(7, &script{say: func(int) string { return "abcdef" }, frames: 1}, decodes)
			ctx, leave := context.WithCancel(t.Context())
			resp := w.send(ctx, http.MethodPost, chats, strings.NewReader(body))
			if _, err := resp.Body.Read(make([]byte, 10)); err != nil || g.held() != 2 {
				t.Errorf("%v, %d segments are lent", err, g.held())
			}
			leave()
			resp.Body.Close()
			synctest.Wait()
		})
	})
}

// TestPassedMedia: engines that take media in passthrough requests get the unchanged body, and the
// media keys; requests whose media are unresolved are routed by their text.
func TestPassedMedia(t *testing.T) {
	const promptWait = 3 * time.Second
	inGallery(t, Config{PromptWait: promptWait}, func(t *testing.T, w *world, g *gallery) {
		s := &script{passer: passer{pieces: events(99, 2, 16, `{"a":1}`)}}
		w.worker(7, s, looks)
		send := func(body string, headers ...string) engine.PassthroughRequest {
			t.Helper()
			if got := w.post(chats, body, headers...); got.status != 200 {
				t.Fatal(got)
			}
			all := s.passes()
			return all[len(all)-1]
		}
		body := strings.Replace(showing(`,"stream":true,"cache_salt":"s"`, "http://a/red", "http://a/blue"), `"type":"image_url"`, `"uuid":"mine","type":"image_url"`, 1)
		req := send(body)
		asked := w.router.routed()[0]
		mine := media.NameKey(mediaOwnerOf("", "s"), "mine")
		if string(req.Body) != body || len(req.Objects) != 2 || req.Objects[0].Key != mine || req.Objects[1].Key != media.URLKey("http://a/blue", 0) {
			t.Errorf("%s %+v", req.Body, req.Objects)
		}
		for _, o := range req.Objects {
			if o.Source != "" || o.Name != "" || !o.Tensor.IsZero() {
				t.Errorf("the engine is told of %+v", o)
			}
		}
		if !slices.Equal(asked.Media, req.Media) || len(asked.Media) != 2 || !slices.Equal(asked.Tokens, req.Prompt) {
			t.Errorf("the router was asked about %+v", asked.Media)
		}
		predicted := fmt.Sprint(len(req.Prompt))
		for series, want := range map[string]string{"mismatch_total": "1", "predicted_tokens_total": predicted, "reported_tokens_total": "99"} {
			if v := w.metric("frontend_media_" + series + `{model="bytes"}`); v != want {
				t.Errorf("%s is %s, want %s", series, v, want)
			}
		}

		text := send(showing("", "http://a/none"))
		if why := w.post(chats, showing("", "http://a/none")).header.Get("x-penstock-text-only"); why != "dims_unavailable" {
			t.Errorf("the answer says %q", why)
		}
		if got := w.post(chats, showing(`,"nvext":{"annotations":["query_instance_id"]}`, "http://a/none")); !strings.Contains(got.body, `"text_only":"dims_unavailable"`) {
			t.Errorf("%v", got)
		}
		asked = w.router.routed()[1]
		if text.Objects != nil || text.Media != nil || !slices.Equal(asked.Tokens, req.Prompt[:req.Media[0].Start]) {
			t.Errorf("%+v, and the router was asked about %d tokens", text.Objects, len(asked.Tokens))
		}
		began := time.Now()
		if slow := send(showing("", "http://slow/")); slow.Objects != nil || time.Since(began) != promptWait {
			t.Errorf("%+v after %v", slow.Objects, time.Since(began))
		}
		if kwargs := send(showing(`,"mm_processor_kwargs":{"x":1}`, "http://a/red")); kwargs.Objects != nil {
			t.Errorf("%+v", kwargs.Objects)
		}
		for reason, want := range map[string]string{"dims_unavailable": "4", "processor_overridden": "1"} {
			if v := w.metric(`frontend_routing_text_only_total{model="bytes",reason="` + reason + `"}`); v != want {
				t.Errorf("%s: %s, want %s", reason, v, want)
			}
		}
		for body, says := range map[string]string{
			showing("", "http://forbidden/"):                                              "none that may be fetched",
			strings.Replace(showing("", "http://a/red"), "What is this?", "<|image|>", 1): "stands for media",
			showing("", slices.Repeat([]string{"http://a/red"}, 9)...):                    "a request may have 8",
		} {
			if got := w.post(chats, body); got.status != 400 || !strings.Contains(got.body, says) || len(s.passes()) != 5 {
				t.Errorf("the engine was asked, or nobody said %q: %v", says, got)
			}
		}
		if got := w.post(chats, showing(`,"nvext":{"annotations":["query_instance_id"]}`, "http://a/red")); got.status != 200 || !strings.Contains(got.body, `"decode_worker_id":7`) || len(s.passes()) != 5 {
			t.Errorf("%v", got)
		}
		// A request refused here does not reach the engine, which would fetch the media.
		for says, body := range map[string]string{
			"none that may be fetched from": showing("", "http://a/red", "http://inner/"),
			"a request may have 8":          showing("", slices.Repeat([]string{"http://a/red"}, 9)...),
			"stands for media":              strings.Replace(showing("", "http://a/red"), "What is this?", "<|image|>", 1),
		} {
			if got := w.post(chats, body); got.status != 400 || !strings.Contains(got.body, says) || !strings.Contains(got.body, `"param":"messages[0]`) || len(s.passes()) != 5 {
				t.Errorf("%v, want a refusal that says %q; %d requests were passed on", got, says, len(s.passes()))
			}
		}
		if strings.Contains(w.log.String(), "http://") || strings.Contains(w.log.String(), "base64") {
			t.Errorf("the log has URLs: %s", w.log)
		}
	})
}

// TestUntoldMedia: media whose keys engines do not receive, or which no routing decision uses, are not
// resolved.
func TestUntoldMedia(t *testing.T) {
	for reason, c := range map[media.Reason]struct {
		cfg  Config
		card func(*engine.Card)
	}{
		media.HashForwardDisabled: {Config{}, func(c *engine.Card) { looks(c); c.MediaKeys = "" }},
		media.NotRouted:           {Config{IgnoresCaches: true}, looks},
		media.CountsDiffer:        {Config{}, func(c *engine.Card) { looks(c); c.MiscountedMedia = []string{"image"} }},
	} {
		inGallery(t, c.cfg, func(t *testing.T, w *world, g *gallery) {
			s := &script{passer: passer{pieces: events(9, 1, 0, `{}`)}}
			w.worker(7, s, c.card)
			if got := w.post(chats, showing("", "http://a/red")); got.status != 200 || s.passes()[0].Objects != nil || g.mu.asked != 0 {
				t.Errorf("%s: %v, %d looks", reason, got, g.mu.asked)
			}
			if v := w.metric(`frontend_routing_text_only_total{model="bytes",reason="` + string(reason) + `"}`); v != "1" {
				t.Errorf("%s is counted %s times", reason, v)
			}
			// The engine would fetch a forbidden URL.
			if got := w.post(chats, showing("", "http://a/red", "http://forbidden/")); got.status != 400 || len(s.passes()) != 1 ||
				!strings.Contains(got.body, `"param":"messages[0].content[`) {
				t.Errorf("%s: %v", reason, got)
			}
		})
	}
	inGallery(t, Config{IgnoresCaches: true}, func(t *testing.T, w *world, g *gallery) {
		s := &script{passer: passer{pieces: events(9, 1, 0, `{}`)}}
		w.worker(7, s, looks)
		got := w.post(chats, showing(`,"nvext":{"router_config_override":{"router_mode":"`+string(route.KV)+`"}}`, "http://a/red"))
		if got.status != 200 || len(s.passes()[0].Objects) != 1 {
			t.Errorf("a request that asks for the caches: %v", got)
		}
	})
}

// TestMiscountedMedia: media of a kind that one engine of the model counts differently go to an engine
// as the client sent them, even if the engine takes media with tokens; they are not resolved here, and
// forbidden URLs are refused all the same.
func TestMiscountedMedia(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		s := &script{passer: passer{pieces: events(9, 1, 0, `{}`)}}
		attaches := func(c *engine.Card) { looks(c); c.AcceptsObjects = true }
		w.worker(7, s, attaches)
		w.worker(8, s, attaches, func(c *engine.Card) { c.MiscountedMedia = []string{"image"} })
		for range 2 {
			if got := w.post(chats, showing("", "http://a/red")); got.status != 200 || g.mu.asked != 0 {
				t.Errorf("%v, %d looks", got, g.mu.asked)
			}
		}
		if v := w.metric(`frontend_routing_text_only_total{model="bytes",reason="counts_differ"}`); v != "2" || len(s.passes()) != 2 {
			t.Errorf("%s are counted, %d passed on", v, len(s.passes()))
		}
		if got := w.post(chats, showing("", "http://forbidden/")); got.status != 400 || len(s.passes()) != 2 {
			t.Errorf("what nobody may fetch: %v", got)
		}
	})
}

// TestEnginesMakePromptsThatShow: engines that make the prompts get the URLs of media, and a prompt
// without the positions of media is not used.
func TestEnginesMakePromptsThatShow(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		places := []kv.Media{{Hash: 7, Start: 1, End: 3}}
		s := &script{passer: passer{pieces: events(9, 1, 0, `{}`)}, maker: maker{media: places}}
		w.worker(7, s, opaque, preprocesses, func(c *engine.Card) { c.Media = []string{"image"} })
		body := strings.Replace(showing("", "http://a/red"), `"bytes"`, `"closed"`, 1)
		for i, want := range [][]kv.Media{places, nil} {
			if got := w.post(chats, body); got.status != 200 {
				t.Fatal(got)
			}
			req := w.router.routed()[i]
			if !slices.Equal(req.Media, want) || (len(req.Tokens) > 0) != (want != nil) {
				t.Errorf("the router was asked about %d tokens and %v, want %v", len(req.Tokens), req.Media, want)
			}
			if pass := s.passes()[i]; string(pass.Body) != body || pass.Objects != nil {
				t.Errorf("the engine got %s, %+v", pass.Body, pass.Objects)
			}
			s.maker.media = nil
		}
		if asked := s.mu.asked[0].Chat; !strings.Contains(string(asked), `{"type":"text","text":"What is this?"},{"type":"image_url","image_url":{"url":"http://a/red"}}`) {
			t.Errorf("the engine was asked about %s", asked)
		}
		if v := w.metric(`frontend_routing_text_only_total{model="closed",reason="hash_forward_disabled"}`); v != "1" {
			t.Errorf("%q requests by their text", v)
		}
	})
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		w.worker(7, constant("ok"), sees, preprocesses)
		if got := w.post(chats, showing("", "http://a/red")); got.status != 501 || !strings.Contains(got.body, "--preprocess local") {
			t.Errorf("%v", got)
		}
	})
}

// TestLargeData: a data: URI beyond the limit is refused before it is read, by the length of the body
// or, if that may be longer, by its part; neither costs a multiple of it in memory.
func TestLargeData(t *testing.T) {
	const size = 100 << 20
	body := showing("", "data:image/png;base64,"+strings.Repeat("A", size))
	for limit, want := range map[int64]struct {
		status int
		says   string
		most   uint64
	}{
		0:        {413, "larger than 33554432 bytes", 1 << 20},
		2 * size: {400, "messages[0].content[1].image_url.url", 5 * size},
	} {
		inGallery(t, Config{MaxBodyBytes: limit}, func(t *testing.T, w *world, g *gallery) {
			w.worker(7, constant("ok"), sees)
			req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://penstock"+chats, strings.NewReader(body)))
			rec := &recorder{header: http.Header{}}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w.f.Handler().ServeHTTP(rec, req)
			runtime.ReadMemStats(&after)
			got := rec.body.String()
			if rec.status != want.status || !strings.Contains(got, want.says) || len(got) > 1000 || g.mu.asked != 0 {
				t.Errorf("limit %d: %d %.300s", limit, rec.status, got)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > want.most {
				t.Errorf("limit %d: %d bytes are allocated", limit, n)
			}
		})
	}
}

// TestPathsOfMedia: an endpoint that a model's engines do not have takes no media for it.
func TestPathsOfMedia(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, constant("ok"), func(c *engine.Card) { looks(c); c.PassthroughPaths = []string{chats} })
		got := w.post("/v1/messages", `{"model":"bytes","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://a/red"}}]}]}`)
		if got.status != 501 || !strings.Contains(got.body, "use another endpoint") {
			t.Errorf("%v", got)
		}
		if got := w.post("/v1/messages", `{"model":"bytes","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`); got.status != 200 {
			t.Errorf("%v", got)
		}
	})
}

// TestTensorsThatAreSent: the tensors sent with a request are bounded.
func TestTensorsThatAreSent(t *testing.T) {
	big := media.Tensor{Shape: []int{1}, Data: make([]byte, maxTensors/2+1)}
	got := TrimObjects([]media.Object{{Source: "a", Tensor: big}, {Source: "b", Tensor: big}, {Source: "c", Tensor: media.Tensor{Shape: []int{1}, Place: "s"}}})
	if got[0].Source != "" || got[0].Tensor.Data == nil || got[1].Source != "b" || !got[1].Tensor.IsZero() || got[2].Source != "c" || got[2].Tensor.Place != "s" {
		t.Errorf("%q %q %q", got[0].Source, got[1].Source, got[2].Source)
	}
}

// TestMaxMedia: engines accept every request that the decoders accept.
func TestMaxMedia(t *testing.T) {
	if api.MaxMedia != engine.MaxObjects {
		t.Errorf("requests have up to %d media objects, and engines take %d", api.MaxMedia, engine.MaxObjects)
	}
}

// TestMediaOfKeys: fetches for a request are charged to its key.
func TestMediaOfKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(keyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, constant("ok"), sees)
		if got := w.ask("POST", chats, showing("", "http://a/red"), "Authorization", "Bearer "+userKey); got.status != 200 {
			t.Fatal(got)
		}
		if client := g.client(); client != "user" {
			t.Errorf("media are fetched for the client %q", client)
		}
	}, func(d *Deps) { d.Keys = must(keys.Open(path)) })
}
