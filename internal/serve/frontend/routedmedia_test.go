package frontend

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// sights makes a card of a model behind a router process that resolves media.
func sights(c *engine.Card) {
	c.ResolvesMedia, c.Preprocess, c.Router = true, true, true
}

// seen is a router process's answer about one object.
func seen(kind media.Kind) *engine.Preprocessed {
	key := media.Key{Hash: 7, Digest: kv.Digest{1}}
	return &engine.Preprocessed{
		Tokens: []kv.Token{300, 301, 302, 303}, Media: []kv.Media{{Hash: 7, Digest: key.Digest, Start: 1, End: 3}},
		Objects: []media.Object{{Kind: kind, Key: key, Identity: media.ByPixels, Size: media.Size{Width: 3, Height: 2}, Source: "http://evil", Tensor: media.Tensor{Shape: []int{1}, Place: "evil"}}},
	}
}

// TestSighted: the router processes resolve the media of conversations, and this frontend looks at
// none; it does everything else.
func TestSighted(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		s := constant("ok")
		s.maker.shown = func(*engine.PreprocessRequest) *engine.Preprocessed { return seen(media.Image) }
		w.worker(7, s, decodes, sights)
		w.worker(8, constant("ok"), decodes, preprocesses) // it is not asked
		for range 3 {
			body := strings.Replace(showing(`,"cache_salt":"mine"`, "http://a/red"), `{"type":"image_url",`, `{"type":"image_url","uuid":"cat",`, 1)
			if got := w.post(chats, body); got.status != 200 {
				t.Fatal(got)
			}
		}
		asked := s.asked()
		if len(asked) != 3 || !asked[0].ResolveMedia || asked[0].Model != "bytes" {
			t.Fatalf("asked was %+v", asked)
		}
		chat, err := prep.DecodeChat(asked[0].Chat)
		want := prep.Media{Kind: media.Image, URL: "http://a/red", Name: "cat", Part: "messages[0].content[1]", Param: "messages[0].content[1].image_url.url"}
		if err != nil || !slices.Equal(chat.Media, []prep.Media{want}) || chat.Namespace != mediaOwnerOf("", "mine") || !bytes.Contains(chat.Messages[0].Parts, []byte(`{"type":"image"}`)) {
			t.Errorf("%v: asked about %+v", err, chat)
		}
		req := s.seen()[0]
		object := media.Object{
			Kind: media.Image, Key: media.Key{Hash: 7, Digest: kv.Digest{1}}, Identity: media.ByPixels, Size: media.Size{Width: 3, Height: 2},
			Part: want.Part, Source: want.URL, Name: want.Name,
		}
		if len(req.Objects) != 1 || req.Objects[0].Key != object.Key || req.Objects[0].Source != object.Source || req.Objects[0].Part != object.Part ||
			req.Objects[0].Name != object.Name || !req.Objects[0].Tensor.IsZero() {
			t.Errorf("the engine got %+v, want %+v", req.Objects, object)
		}
		if !slices.Equal(req.Prompt, []kv.Token{300, 301, 302, 303}) || !slices.Equal(req.Media, seen(media.Image).Media) {
			t.Errorf("the engine got %v with %v", req.Prompt, req.Media)
		}
		if r := w.router.routed()[0]; !slices.Equal(r.Media, req.Media) {
			t.Errorf("the router was asked about %v", r.Media)
		}
		if got := w.post(chats, `{"model":"bytes","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`); got.status != 200 || len(s.asked()) != 3 {
			t.Errorf("a text: %v, asked %d times", got, len(s.asked()))
		}
		if g.mu.asked != 0 {
			t.Errorf("this frontend looked %d times", g.mu.asked)
		}
		if v := w.metric(`frontend_media_resolve_seconds_count{outcome="resolved"}`); v != "3" {
			t.Errorf("%q are counted", v)
		}
	})
}

// TestSightedAnswers: a router process that refuses, that cannot resolve, that does not answer, and one
// that violates the contract.
func TestSightedAnswers(t *testing.T) {
	blind := &engine.Preprocessed{Tokens: []kv.Token{300}, TextOnly: media.SizeRefused, TextOnlyError: fault.InvalidParam("messages[0].content[1]", "'messages[0].content[1]': thin")}
	half := seen(media.Image)
	half.Objects = nil
	for _, c := range []struct {
		name             string
		maker            maker
		attached, passed int // statuses
		says             string
		keys             int
	}{
		{"found out", maker{shown: func(*engine.PreprocessRequest) *engine.Preprocessed { return seen(media.Image) }}, 200, 200, "", 1},
		{"not found out", maker{shown: func(*engine.PreprocessRequest) *engine.Preprocessed { return blind }}, 400, 200, "thin", 0},
		{"refused", maker{refuse: fault.InvalidParam("messages[0].content[1].image_url.url", "none that may be fetched")}, 400, 400, "messages[0].content[1].image_url.url", 0},
		{"of another kind", maker{shown: func(*engine.PreprocessRequest) *engine.Preprocessed { return seen(media.Video) }}, 500, 200, "defect", 0},
		{"by halves", maker{shown: func(*engine.PreprocessRequest) *engine.Preprocessed { return half }}, 500, 200, "defect", 0},
		{"not at all", maker{shown: func(*engine.PreprocessRequest) *engine.Preprocessed {
			return &engine.Preprocessed{Tokens: []kv.Token{300}}
		}}, 500, 200, "defect", 0},
		{"mute", maker{mute: true}, 504, 200, "longer than", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inGallery(t, Config{RequestTimeout: 20 * time.Second}, func(t *testing.T, w *world, _ *gallery) {
				s := constant("ok")
				s.maker = c.maker
				w.worker(7, s, decodes, sights)
				if got := w.post(chats, showing("", "http://a/red")); got.status != c.attached || !strings.Contains(got.body, c.says) {
					t.Errorf("attached: %v", got)
				}
			})
			inGallery(t, Config{RequestTimeout: 20 * time.Second}, func(t *testing.T, w *world, _ *gallery) {
				s := &script{passer: passer{pieces: events(9, 1, 0, `{}`)}, maker: c.maker}
				w.worker(7, s, looks, sights)
				got := w.post(chats, showing("", "http://a/red"))
				if got.status != c.passed || c.passed != 200 && !strings.Contains(got.body, c.says) {
					t.Errorf("passed on: %v", got)
				}
				if c.passed == 200 && (len(s.passes()) != 1 || len(s.passes()[0].Objects) != c.keys) {
					t.Errorf("passed on were %+v", s.passes())
				}
			})
		})
	}
}
