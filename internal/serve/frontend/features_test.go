package frontend

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
)

// ships makes a card of a model whose engines make prompts with media features of their processors, and
// accept such features.
func ships(c *engine.Card) {
	c.ContextLength = 4096
	c.Media, c.MediaKeys, c.PassthroughPaths = []string{"image"}, engine.MediaKeysUUID, strings.Fields(allPaths)
	c.Preprocess, c.Features = true, true
}

// shipping is an engine of such a model.
func shipping(text string) *script {
	s := constant(text)
	s.maker.media, s.maker.features = []kv.Media{{Hash: 77, Start: 1, End: 4}}, []byte(`{"made":"of it"}`)
	s.passer.pieces = []engine.PassthroughChunk{{Data: []byte(`{"passed":true}`), Last: true, PromptTokens: 9, OutputTokens: 1, Cached: 0}}
	return s
}

// TestShipped: a request with an image goes to an engine as tokens, with the features that another
// engine's processor made.
func TestShipped(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		s := shipping("fine")
		s.maker.features = bytes.Repeat([]byte("0123456789"), 1<<20) // in several frames
		cannot := shipping("no")
		w.worker(1, cannot, ships, func(c *engine.Card) { c.Features = false })
		w.worker(2, s, ships)
		for _, with := range []string{"", `,"stream":true`} {
			got := w.post(chats, showing(with, "http://a/red"))
			if got.status != http.StatusOK || !strings.Contains(got.body, "f") || strings.Contains(got.body, "passed") {
				t.Fatalf("%v", got)
			}
		}
		req, asked := s.seen()[1], s.asked()[1]
		if !bytes.Equal(req.Features, s.maker.features) || !slices.Equal(req.Prompt, engineSees(&asked)) || !slices.Equal(req.Media, s.maker.media) || req.Objects != nil {
			t.Errorf("the engine has %d bytes, %d tokens and %v", len(req.Features), len(req.Prompt), req.Media)
		}
		if routed := w.router.routed()[1]; !slices.Contains(routed.Exclude, 1) || !slices.Equal(routed.Media, req.Media) {
			t.Errorf("the router was asked %v", routed)
		}
		if v := w.metric(`frontend_media_shipped_total{model="bytes"}`); v != "2" || len(cannot.asked()) != 0 {
			t.Errorf("%s requests are counted; the engine that has none was asked for %d", v, len(cannot.asked()))
		}
	})
}

// mapLender is a Lender.
type mapLender struct {
	lent map[string][]byte
	n    int
}

func (p *mapLender) Lend(data []byte) (string, func(), error) {
	p.n++
	place := fmt.Sprint("place", p.n)
	p.lent[place] = data
	return place, func() { delete(p.lent, place) }, nil
}

// TestShippedByPlace: large features are lent while their request lasts, if every worker which takes features can
// fetch them.
func TestShippedByPlace(t *testing.T) {
	for _, c := range []struct {
		size          int
		first, second bool // which worker fetches
		wantLent      bool
	}{{resolve.SentWithRequest + 1, true, true, true}, {resolve.SentWithRequest, true, true, false}, {resolve.SentWithRequest + 1, true, false, false}} {
		lender := &mapLender{lent: map[string][]byte{}}
		inWorldWith(t, Config{Preprocess: PreprocessEngine}, func(d *Deps) { d.Lender = lender }, func(t *testing.T, w *world) {
			var lent, sent int
			for i, fetches := range []bool{c.first, c.second} {
				s := shipping("fine")
				s.maker.features = bytes.Repeat([]byte{'1'}, c.size)
				s.veto = func(r *engine.Request) error {
					switch {
					case len(r.Features) == c.size && r.FeaturesAt.IsZero():
						sent++
					case len(r.Features) == 0 && r.FeaturesAt.Size == c.size && len(lender.lent[r.FeaturesAt.Place]) == c.size:
						lent++
					default:
						t.Errorf("%d bytes came, and %+v", len(r.Features), r.FeaturesAt)
					}
					return nil
				}
				w.worker(kv.WorkerID(i+1), s, ships, func(card *engine.Card) { card.Fetches = fetches })
			}
			if got := w.post(chats, showing("", "http://a/red")); got.status != http.StatusOK {
				t.Fatalf("%v", got)
			}
			synctest.Wait() // the handler may still be on its way out
			if lent+sent != 1 || (lent == 1) != c.wantLent || len(lender.lent) != 0 {
				t.Errorf("%+v: %d requests with a place, %d with features, %d are still lent", c, lent, sent, len(lender.lent))
			}
		})
	}
}

// TestShippedMoves: a stream about an image continues on another engine, token by token.
func TestShippedMoves(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		dies, goes := shipping("a picture"), shipping("a picture")
		dies.dieAfter = 3
		w.worker(1, dies, ships)
		w.worker(2, goes, ships)
		got := w.post(chats, showing(`,"stream":true`, "http://a/red"))
		if got.status != http.StatusOK || strings.Contains(got.body, "error") || !strings.Contains(got.body, "[DONE]") {
			t.Fatalf("%v", got)
		}
		req := goes.seen()[0]
		if len(dies.seen()) == 1 && (len(req.Generated) != 1 || len(req.Generated[0]) != 3) || string(req.Features) != `{"made":"of it"}` || len(req.Media) != 1 {
			t.Errorf("the second engine got %v and %q", req.Generated, req.Features)
		}
	})
}

// TestUnshipped: a request that cannot go that way is passed through unchanged, with the known tokens.
func TestUnshipped(t *testing.T) {
	for what, c := range map[string]struct {
		change    func(*script)
		with      string
		asks      bool // for features
		unshipped string
	}{
		"the engine has none to give":  {change: func(s *script) { s.maker.features = nil }, asks: true},
		"more than a request may have": {change: func(s *script) { s.maker.raw = slices.Repeat([][]byte{pieceOf(4 << 20)}, 13) }, asks: true},
		"the engine refuses them":      {change: func(s *script) { s.refuse = engine.RefuseFeatures(nil) }, asks: true, unshipped: "1"},
		"the engine fails over them":   {change: func(s *script) { s.dieFirst, s.dieWith = true, engine.RefuseFeatures(nil) }, asks: true, unshipped: "1"},
		"the template fails":           {change: func(s *script) { s.maker.refuse = fault.New(fault.Internal, "broken") }, asks: true},
		"several choices":              {change: func(*script) {}, with: `,"n":2`},
		"arguments of the processor":   {change: func(*script) {}, with: `,"mm_processor_kwargs":{"x":1}`},
	} {
		for _, stream := range []bool{false, true} {
			inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
				s := shipping("no")
				with := c.with
				if stream {
					s.passer.pieces, with = events(9, 1, 0, `{"passed":true}`), with+`,"stream":true`
				}
				c.change(s)
				w.worker(7, s, ships)
				got := w.post(chats, showing(with, "http://a/red"))
				if got.status != http.StatusOK || !strings.Contains(got.body, `{"passed":true}`) || got.header.Get("X-Penstock-Worker") != "7" {
					t.Errorf("%s: %v", what, got)
				}
				passed, asked := s.passes(), s.asked()
				if len(passed) != 1 || !strings.Contains(string(passed[0].Body), "http://a/red") {
					t.Fatalf("%s: %d requests were passed on", what, len(passed))
				}
				if asked[0].Features != c.asks {
					t.Errorf("%s: features are asked for: %v", what, asked[0].Features)
				}
				if s.maker.refuse == nil && s.maker.raw == nil && (len(asked) != 1 || !slices.Equal(passed[0].Prompt, engineSees(&asked[0])) || len(passed[0].Media) != 1) {
					t.Errorf("%s: the engine was asked %d times, and then %d tokens known", what, len(asked), len(passed[0].Prompt))
				}
				if v := w.metric(`frontend_media_unshipped_total{model="bytes"}`); v != c.unshipped {
					t.Errorf("%s: %q are counted", what, v)
				}
				if said := strings.Contains(w.log.String(), "passed on as it is"); said != (c.unshipped != "") {
					t.Errorf("%s: the log says %s", what, w.log)
				}
			})
		}
	}
}

// TestShippedByAnother: the part that a failing engine had already sent is not mixed with another
// engine's, and the answer names the worker that gave it.
func TestShippedByAnother(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		breaks, makes := shipping("no"), shipping("no")
		breaks.maker.raw, breaks.maker.breaks = [][]byte{pieceOf(1000), pieceOf(1000)}, fault.New(fault.Unavailable, "away")
		breaks.dieFirst, breaks.dieWith = true, engine.RefuseFeatures(nil)
		makes.passer.status, makes.passer.pieces = 200, shipping("").passer.pieces
		w.worker(1, breaks, ships, func(c *engine.Card) { c.PassthroughPaths = nil })
		w.worker(2, makes, ships)
		for range 2 { // the order of the workers does not matter
			got := w.post(chats, showing("", "http://a/red"))
			if got.status != 200 || !strings.Contains(got.body, "passed") || got.header.Get("X-Penstock-Worker") != "2" {
				t.Errorf("%v", got)
			}
		}
		if all := breaks.seen(); len(all) != 2 || string(all[0].Features) != `{"made":"of it"}` || string(all[1].Features) != `{"made":"of it"}` {
			t.Errorf("the first engine got %d requests", len(all))
		}
	})
}

// TestShippersGone: if no worker remains which accepts features, the others get the request unchanged.
func TestShippersGone(t *testing.T) {
	for _, others := range []bool{true, false} {
		inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
			dies, takes := shipping("no"), shipping("no")
			dies.refuse = fault.New(fault.Unavailable, "away")
			w.worker(1, dies, ships, func(c *engine.Card) { c.PassthroughPaths = nil })
			if others {
				w.worker(2, takes, ships, func(c *engine.Card) { c.Features = false })
			} else {
				w.worker(2, takes, ships, func(c *engine.Card) { c.Preprocess = false })
				takes.refuse = dies.refuse
			}
			got := w.post(chats, showing("", "http://a/red"))
			if want := map[bool]int{true: 200, false: 503}[others]; got.status != want || others != strings.Contains(got.body, "passed") {
				t.Errorf("others %v: %v", others, got)
			}
		})
	}
}

// pieceOf is a frame with n bytes of features.
func pieceOf(n int) (frame []byte) {
	_ = (&engine.Preprocessed{Attempt: 1, Features: make([]byte, n)}).SendFrames(func(b []byte) error {
		if frame == nil {
			frame = bytes.Clone(b)
		}
		return nil
	})
	return frame
}

// TestShippedFails: an error that is not about the features fails the request, and so does any error
// after the first token.
func TestShippedFails(t *testing.T) {
	for what, change := range map[string]func(*script){
		"the client's mistake": func(s *script) { s.refuse = fault.InvalidParam("top_k", "too large") },
		"after a token":        func(s *script) { s.dieAfter, s.dieWith = 1, engine.RefuseFeatures(nil) },
	} {
		inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
			s := shipping("fine")
			change(s)
			w.worker(7, s, ships)
			got := w.post(chats, showing(`,"stream":true`, "http://a/red"))
			if !strings.Contains(got.body, `"error"`) || len(s.passes()) != 0 {
				t.Errorf("%s: %v", what, got)
			}
		})
	}
}

// TestShippedMemory: features count against the memory of requests, and are released.
func TestShippedMemory(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine, MaxBodyBytes: 1 << 20, BodyMemory: 9 << 20}, func(t *testing.T, w *world) {
		s := shipping("fine")
		s.maker.features = make([]byte, 4<<20)
		for i := range s.maker.features {
			s.maker.features[i] = ' '
		}
		during := int64(0)
		s.interlude = func() { during = w.f.bodies.Used() }
		w.worker(7, s, ships)
		if got := w.post(chats, showing("", "http://a/red")); got.status != http.StatusOK || during < 8<<20 {
			t.Errorf("%d bytes are accounted for: %v", during, got)
		}
		s.maker.features = append(s.maker.features, s.maker.features...)
		if got := w.post(chats, showing("", "http://a/red")); got.status != http.StatusOK || len(s.passes()) != 1 {
			t.Errorf("where there is no room: %v", got)
		}
	})
}

// TestAttachedOrPassed: if an engine that takes media with tokens cannot get them from here, it gets
// the client's request, if it takes passthrough requests; forbidden URLs are refused all the same.
func TestAttachedOrPassed(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		s := constant("ok")
		s.passer.pieces = shipping("").passer.pieces
		w.worker(7, s, sees, func(c *engine.Card) {
			c.Media, c.PassthroughPaths = []string{"image", "video"}, strings.Fields(allPaths)
		})
		if got := w.post(chats, showing("", "http://a/red")); got.status != 200 || len(s.seen()) != 1 || len(s.passes()) != 0 {
			t.Fatalf("what is known goes with the tokens: %v", got)
		}
		got := w.post(chats, strings.ReplaceAll(showing("", "http://a/none"), "image_url", "video_url"))
		if got.status != 200 || !strings.Contains(got.body, "passed") || got.header.Get("X-Penstock-Text-Only") == "" {
			t.Errorf("%v", got)
		}
		if p := s.passes(); len(p) != 1 || p[0].Objects != nil || p[0].Media != nil {
			t.Errorf("%d requests were passed on", len(p))
		}
		if got := w.post(chats, showing("", "http://forbidden/")); got.status < 400 || len(s.passes()) != 1 {
			t.Errorf("%v", got)
		}
		if routed := w.router.routed(); len(routed) != 2 || !strings.HasSuffix(routed[1].ID, "/pass") {
			t.Errorf("%d requests were routed", len(routed))
		}
	})
}
