package frontend

import (
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"slices"
	"strings"
	"testing"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
)

// failing makes a script refuse requests for those of their objects for which kind returns one.
func failing(s *script, kind func(req *engine.Request, i int) encode.FailureKind) *script {
	s.veto = func(req *engine.Request) error {
		var all []error
		for i := range req.Objects {
			if k := kind(req, i); k != encode.NotFailed {
				all = append(all, engine.NewMediaFailure(i, k, &req.Objects[i], "the encoder says no"))
			}
		}
		return errors.Join(all...)
	}
	return s
}

// failingURL fails the objects of a URL.
func failingURL(url string, kind encode.FailureKind) func(*engine.Request, int) encode.FailureKind {
	return func(req *engine.Request, i int) encode.FailureKind {
		if req.Objects[i].Key == media.URLKey(url, 0) {
			return kind
		}
		return encode.NotFailed
	}
}

// answered is what a test reads of an answer, whole or streamed.
type answered struct {
	Usage json.RawMessage
	Nvext struct {
		Attempts     int
		MediaDropped []struct {
			Index int
			Kind  string
		} `json:"media_dropped"`
		MediaHalved []struct{ Index, Times int } `json:"media_halved"`
	}
	Error struct{ Message, Param, Code string }
	// of the Responses API
	Response *answered
}

// readAnswer reads an answer; of a stream, the last usage and nvext.
func readAnswer(t *testing.T, a answerOf) (all answered) {
	t.Helper()
	bodies := []string{a.body}
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		bodies = nil
		for line := range strings.Lines(a.body) {
			if data, ok := strings.CutPrefix(line, "data: {"); ok {
				bodies = append(bodies, "{"+data)
			}
		}
	}
	for _, body := range bodies {
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
	}
	if all.Response != nil {
		all = *all.Response
	}
	return all
}

// TestMediaFailureFails: by default a request of which an object fails is an error about its part, at the first attempt,
// also as a stream, which has not begun.
func TestMediaFailureFails(t *testing.T) {
	for kind, want := range map[encode.FailureKind]struct {
		status int
		code   string
	}{
		encode.Corrupt: {400, "invalid_request"}, encode.SizeDiffers: {400, "invalid_request"}, encode.DeadlinePassed: {504, "deadline_exceeded"},
		encode.Unreachable: {400, "invalid_request"},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
				s := failing(constant("ok"), failingURL("http://a/blue", kind))
				w.worker(7, s, sees)
				w.worker(8, s, sees)
				for i, with := range []string{"", `,"stream":true`, `,"nvext":{"media_failure":"fail"}`} {
					got := w.post(chats, showing(with, "http://a/red", "http://a/blue"))
					e := readAnswer(t, got)
					if got.status != want.status || e.Error.Code != want.code || e.Error.Param != "messages[0].content[2]" || !strings.Contains(e.Error.Message, "the encoder says no") {
						t.Errorf("%s: %v", with, got)
					}
					if n := len(s.seen()); n != i+1 {
						t.Errorf("%d attempts after %d requests", n, i+1)
					}
				}
				if v := w.metric(`frontend_media_dropped_total{kind="` + engine.FailureName(kind) + `",model="bytes"}`); v != "" && v != "0" {
					t.Errorf("%s media were dropped", v)
				}
			})
		})
	}
}

// TestMediaFailureTextOnly: with text_only a request is rendered and routed anew without the object that failed: the
// worker and the router see the prompt, and the client the usage, of the same request sent without it. The answer says
// which object is missing, and why.
func TestMediaFailureTextOnly(t *testing.T) {
	const (
		policy = `,"nvext":{"media_failure":"text_only"}`
		image  = `{"type":"image_url","image_url":{"url":"http://a/%s"}}`
		input  = `{"type":"input_image","image_url":"http://a/%s"}`
	)
	chat := func(with, parts string) string {
		return `{"model":"bytes","max_tokens":4,"seed":1` + with + `,"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"Yes?"},{"role":"user","content":[` + parts + `]}]}`
	}
	items := func(with, parts string) string {
		return `{"model":"bytes","max_output_tokens":4,"seed":1` + with + `,"input":[{"role":"user","content":[` + parts + `]}]}`
	}
	red, blue := strings.ReplaceAll(image, "%s", "red"), strings.ReplaceAll(image, "%s", "blue")
	const a, b = `{"type":"text","text":"a"}`, `{"type":"text","text":"b"}`
	inA, inB := strings.ReplaceAll(a, `"text","text"`, `"input_text","text"`), strings.ReplaceAll(b, `"text","text"`, `"input_text","text"`)
	for _, tt := range []struct {
		name, path     string
		request        func(with, parts string) string
		with           string
		shown, without string
		index          int
	}{
		{"chat", chats, chat, "", a + "," + red + "," + blue + "," + b, a + "," + red + "," + b, 1},
		{"stream", chats, chat, `,"stream":true,"stream_options":{"include_usage":true}`, blue + "," + a + "," + red, a + "," + red, 0},
		{"choices", chats, chat, `,"n":3,"temperature":1`, a + "," + red + "," + blue, a + "," + red, 1},
		{"the only one", chats, chat, "", a + "," + blue + "," + b, a + "," + b, 0},
		{"nothing else", chats, chat, "", blue, "", 0},
		{"responses", "/v1/responses", items, "", strings.ReplaceAll(inA+","+input+","+inB, "%s", "blue"), inA + "," + inB, 0},
		{"responses, stream", "/v1/responses", items, `,"stream":true`, inA + "," + strings.ReplaceAll(input, "%s", "red") + "," + strings.ReplaceAll(input, "%s", "blue"), inA + "," + strings.ReplaceAll(input, "%s", "red"), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
				s := failing(constant("ok"), failingURL("http://a/blue", encode.Corrupt))
				w.worker(7, s, sees)
				plain := w.post(tt.path, tt.request(tt.with+policy, tt.without))
				got := w.post(tt.path, tt.request(tt.with+policy, tt.shown))
				if plain.status != 200 || got.status != 200 {
					t.Fatalf("%v\n%v", plain, got)
				}
				want, have := readAnswer(t, plain), readAnswer(t, got)
				if string(want.Usage) != string(have.Usage) || len(have.Usage) == 0 {
					t.Errorf("usage %s, want %s", have.Usage, want.Usage)
				}
				x := have.Nvext
				if x.Attempts != 2 || len(x.MediaDropped) != 1 || x.MediaDropped[0].Index != tt.index || x.MediaDropped[0].Kind != "corrupt" {
					t.Errorf("nvext is %+v", x)
				}
				if h := got.header; h.Get("X-Penstock-Media-Dropped") != fmt.Sprintf("%d=corrupt", tt.index) || h.Get("X-Penstock-Text-Only") != "" {
					t.Errorf("headers %v", h)
				}
				if want.Nvext.MediaDropped != nil || plain.header.Get("X-Penstock-Media-Dropped") != "" {
					t.Errorf("nothing failed: %+v", want.Nvext)
				}
				seen, routed := s.seen(), w.router.routed()
				if len(seen) != 3 || len(routed) != 3 || seen[1].Attempt != 1 || seen[2].Attempt != 2 || seen[2].ID != seen[1].ID {
					t.Fatalf("%d attempts, %d routed", len(seen), len(routed))
				}
				if !slices.Equal(seen[2].Prompt, seen[0].Prompt) || !slices.Equal(seen[2].Media, seen[0].Media) || len(seen[2].Objects) != len(seen[0].Objects) {
					t.Errorf("the prompt without the object has %d tokens, that of the request without it %d", len(seen[2].Prompt), len(seen[0].Prompt))
				}
				if !slices.Equal(routed[2].Tokens, seen[2].Prompt) || len(routed[2].Exclude) != 0 {
					t.Error("the router was asked about another prompt, or not about all workers")
				}
				if v := w.metric(`frontend_media_dropped_total{kind="corrupt",model="bytes"}`); v != "1" {
					t.Errorf("%q dropped media are counted", v)
				}
			})
		})
	}
}

// TestSeveralMediaFail: objects which fail together, or one after the other, are left out; each keeps the index that the
// client gave it.
func TestSeveralMediaFail(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, failing(constant("ok"), func(req *engine.Request, i int) encode.FailureKind {
			switch blue := media.URLKey("http://a/blue", 0); {
			case req.Objects[i].Key == blue:
				return encode.Corrupt
			case !slices.ContainsFunc(req.Objects, func(o media.Object) bool { return o.Key == blue }) && i == 1:
				return encode.DeadlinePassed
			}
			return encode.NotFailed
		}), sees)
		got := w.post(chats, showing(`,"nvext":{"media_failure":"text_only"}`, "http://a/blue", "http://a/red", "http://a/blue", "http://a/red", "http://a/none"))
		x := readAnswer(t, got).Nvext
		if got.status != 200 || got.header.Get("X-Penstock-Media-Dropped") != "0=corrupt, 2=corrupt, 3=deadline, 4=unreachable" || len(x.MediaDropped) != 4 {
			t.Errorf("%v", got)
		}
	})
}

// TestMediaNotFetched: media which the frontend cannot fetch or read follow the same setting. What may not be fetched,
// or is too large, is an error in any case.
func TestMediaNotFetched(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		s := constant("ok")
		w.worker(7, s, sees)
		for url, kind := range map[string]string{"http://a/none": "unreachable", "data:image/png;base64,AAAA": "corrupt", "http://slow/": "deadline"} {
			before := len(s.seen())
			got := w.post(chats, showing(`,"nvext":{"media_failure":"text_only"}`, "http://a/red", url))
			x := readAnswer(t, got).Nvext
			if got.status != 200 || len(x.MediaDropped) != 1 || x.MediaDropped[0].Index != 1 || x.MediaDropped[0].Kind != kind || x.Attempts != 1 {
				t.Errorf("%s: %v", url, got)
			}
			if seen := s.seen()[before:]; len(seen) != 1 || len(seen[0].Objects) != 1 {
				t.Errorf("%s: %d attempts", url, len(seen))
			}
			if got := w.post(chats, showing("", "http://a/red", url)); got.status != 400 || !strings.Contains(got.body, "messages[0].content[2].image_url.url") {
				t.Errorf("%s by default: %v", url, got)
			}
		}
		if got := w.post(chats, showing(`,"nvext":{"media_failure":"text_only"}`, "http://forbidden/")); got.status != 400 {
			t.Errorf("%v", got)
		}
		ask := w.post(chats, showing(`,"nvext":{"media_failure":"text_only","annotations":["query_instance_id"]}`, "http://a/none"))
		if x := readAnswer(t, ask).Nvext; ask.status != 200 || len(x.MediaDropped) != 1 {
			t.Errorf("a query: %v", ask)
		}
	})
}

// TestOutOfMemory: an object which is too large for the encoder is tried again at half its resolution, at most twice: as
// another object, with other tokens. Then the setting decides.
func TestOutOfMemory(t *testing.T) {
	for _, tt := range []struct {
		limit  int // tokens
		with   string
		status int
		tokens []int // of the attempts
		halved int
		drops  string
	}{
		{64, "", 200, []int{64}, 0, ""},
		{63, "", 200, []int{64, 16}, 1, ""},
		{15, `,"nvext":{"media_failure":"text_only"}`, 200, []int{64, 16, 4}, 2, ""},
		{3, "", 422, []int{64, 16, 4}, 0, ""},
		{3, `,"stream":true,"nvext":{"media_failure":"text_only"}`, 200, []int{64, 16, 4, 0}, 0, "0=out_of_memory"},
	} {
		t.Run(fmt.Sprint(tt.limit, tt.with), func(t *testing.T) {
			inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
				g.pictures["http://a/large"] = painted(t, 224, 224, color.RGBA{1, 2, 3, 255})
				s := failing(constant("ok"), func(req *engine.Request, i int) encode.FailureKind {
					if m := req.Media[i]; m.End-m.Start > tt.limit {
						return encode.OutOfMemory
					}
					return encode.NotFailed
				})
				w.worker(7, s, sees)
				got := w.post(chats, showing(tt.with, "http://a/large"))
				a := readAnswer(t, got)
				if got.status != tt.status {
					t.Fatalf("%v", got)
				}
				seen := s.seen()
				if len(seen) != len(tt.tokens) {
					t.Fatalf("%d attempts", len(seen))
				}
				keys := map[media.Key]bool{}
				for i, req := range seen {
					n := 0
					if len(req.Media) > 0 {
						n = req.Media[0].End - req.Media[0].Start
						if o := req.Objects[0]; keys[o.Key] || o.Key.Hash != req.Media[0].Hash || i > 0 && (o.Identity != media.ByPixels || o.Tensor.Data == nil || o.Source != "") {
							t.Errorf("attempt %d shows %+v", i, o.Key)
						}
						keys[req.Objects[0].Key] = true
					}
					if n != tt.tokens[i] || req.Attempt != uint32(i+1) {
						t.Errorf("attempt %d is %d, with %d tokens", i, req.Attempt, n)
					}
				}
				if tt.status != 200 {
					if a.Error.Code != "media_failed" || a.Error.Param != "messages[0].content[1]" {
						t.Errorf("%v", got)
					}
					return
				}
				if n := fmt.Sprintf(`"prompt_tokens":%d,`, len(seen[len(seen)-1].Prompt)); !strings.Contains(string(a.Usage), n) && !strings.Contains(tt.with, "stream") {
					t.Errorf("usage %s, want %s", a.Usage, n)
				}
				x := a.Nvext
				if (len(x.MediaHalved) == 1) != (tt.halved > 0) || tt.halved > 0 && x.MediaHalved[0].Times != tt.halved || got.header.Get("X-Penstock-Media-Dropped") != tt.drops {
					t.Errorf("%v", got)
				}
				if v := w.metric(`frontend_media_total{kind="image",model="bytes"}`); v != "1" {
					t.Errorf("%s images are counted", v)
				}
			})
		})
	}
}

// TestEncoderLostElsewhere: another worker has other encoders: nothing is left out while one can encode the object.
func TestEncoderLostElsewhere(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, failing(constant("ok"), failingURL("http://a/red", encode.EncoderLost)), sees)
		w.worker(8, constant("ok"), sees)
		for range 4 {
			got := w.post(chats, showing(`,"nvext":{"media_failure":"text_only"}`, "http://a/red"))
			if got.status != 200 || got.header.Get("X-Penstock-Media-Dropped") != "" || got.header.Get("X-Penstock-Worker") != "8" {
				t.Errorf("%v", got)
			}
		}
	})
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, failing(constant("ok"), failingURL("http://a/red", encode.EncoderLost)), sees)
		if got := w.post(chats, showing(`,"nvext":{"media_failure":"text_only"}`, "http://a/red")); got.status != 200 || got.header.Get("X-Penstock-Media-Dropped") != "0=encoder_lost" {
			t.Errorf("%v", got)
		}
	})
}

// TestMediaFailureAfterAcceptance: what fails after a stream has begun ends it.
func TestMediaFailureAfterAcceptance(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		s := constant("ok")
		s.dieFirst, s.dieWith = true, fault.New(fault.MediaFailed, "too late")
		w.worker(7, s, sees)
		got := w.post(chats, showing(`,"stream":true,"nvext":{"media_failure":"text_only"}`, "http://a/red"))
		if got.status != 200 || !strings.Contains(got.body, "too late") || len(s.seen()) != 1 {
			t.Errorf("%v", got)
		}
	})
}

// TestMediaFailurePassedThrough: an engine that answers a request itself cannot leave an object out.
func TestMediaFailurePassedThrough(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, constant("ok"), looks)
		got := w.post(chats, showing(`,"nvext":{"media_failure":"text_only"}`, "http://a/red"))
		if e := readAnswer(t, got).Error; got.status != 400 || e.Param != "nvext.media_failure" {
			t.Errorf("%v", got)
		}
	})
}

// TestMediaFailureOfMessages: a request of the Messages API follows the same setting.
func TestMediaFailureOfMessages(t *testing.T) {
	inGallery(t, Config{}, func(t *testing.T, w *world, g *gallery) {
		w.worker(7, failing(constant("ok"), failingURL("http://a/blue", encode.Corrupt)), sees)
		post := func(with string) answerOf {
			return w.post("/v1/messages", `{"model":"bytes","max_tokens":4`+with+`,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://a/blue"}}]}]}`)
		}
		for _, with := range []string{"", `,"nvext":{}`, `,"nvext":{"media_failure":"fail"}`} {
			got := post(with)
			if got.status != 400 || !strings.Contains(got.body, "the encoder says no") || got.header.Get("X-Penstock-Media-Dropped") != "" {
				t.Errorf("%s: %v", with, got)
			}
		}
		for _, with := range []string{"", `,"stream":true`} {
			got := post(with + `,"nvext":{"media_failure":"text_only"}`)
			x := readAnswer(t, got).Nvext
			if got.status != 200 || len(x.MediaDropped) != 1 || x.MediaDropped[0].Index != 0 || x.MediaDropped[0].Kind != "corrupt" || got.header.Get("X-Penstock-Media-Dropped") != "0=corrupt" {
				t.Errorf("%s: %v", with, got)
			}
		}
	})
}
