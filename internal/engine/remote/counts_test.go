package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/engine"
	"penstock/internal/media/pixel"
	"penstock/internal/media/probe"
)

type names struct{}

func (names) ID(text string) (kv.Token, bool) {
	t, ok := map[string]kv.Token{"<|image|>": 40, "<|video|>": 41, "<|audio|>": 42}[text]
	return t, ok
}

// sights returns the family of the built-in model, as a vLLM engine serves it.
func sights(t testing.TB) *family.Family {
	t.Helper()
	f, err := family.OpenBuiltinFor(family.Serving{Loader: family.VLLM}, names{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestMediaSamples checks that the samples are valid small files that match their names; that the picture is
// as large as the context allows, and that the sound's token count shows how its length is rounded.
func TestMediaSamples(t *testing.T) {
	f := sights(t)
	kinds := []string{"audio", "image", "video"}
	all := mediaSamples(f, kinds, 4096)
	var said []string
	for _, s := range all {
		said = append(said, s.name)
		if len(s.url) > 256<<10 {
			t.Errorf("%s has %d bytes", s.name, len(s.url))
		}
	}
	want := []string{"a picture of 1344 by 1008 pixels", "a picture of 112 by 84 pixels", "a JPEG sequence of 40 frames", "a GIF of 45 frames at 10 a second", "a sound of 44.1 kHz"}
	if !slices.Equal(said, want) {
		t.Errorf("%q", said)
	}
	if again := mediaSamples(f, kinds, 4096); !slices.Equal(again, all) {
		t.Error("the samples differ from one time to another")
	}
	if n := len(mediaSamples(f, []string{"image"}, 100)); n != 1 {
		t.Errorf("%d samples for a small context", n)
	}
	payload, ok := pixel.ParseFramesURI(all[2].url)
	if !ok {
		t.Fatal("no sequence")
	}
	if _, size, err := pixel.DecodeFrames([]byte(payload), pixel.Limits{}); err != nil || size.Frames != 40 || !size.Sequence {
		t.Errorf("%+v %v", size, err)
	}
	if _, size, err := pixel.DecodeFrames(decodedURI(t, all[3].url), pixel.Limits{}); err != nil || size.Frames != 45 || size.Rate != 10 {
		t.Errorf("%+v %v", size, err)
	}
	info, err := probe.ReadHeader(decodedURI(t, all[4].url))
	if err != nil || info.Rate != 44100 {
		t.Fatalf("%+v %v", info, err)
	}
	up, _ := f.Layout(media.Audio, info.Size)
	down, _ := f.Layout(media.Audio, media.Size{Samples: int(info.Frames * 16000 / 44100)})
	if up.CountTokens() != down.CountTokens()+1 {
		t.Errorf("%d tokens rounded up, %d rounded down", up.CountTokens(), down.CountTokens())
	}
}

func decodedURI(t *testing.T, uri string) []byte {
	t.Helper()
	var b []byte
	_, text, _ := strings.Cut(uri, ",")
	if err := json.Unmarshal([]byte(`"`+text+`"`), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCountsCompared checks that counts are compared at each start of the engine, by its usage if it does not
// render. Differences appear in the card's list and the warnings, a refused sample is unchecked, and none of
// the requests counts as load.
func TestCountsCompared(t *testing.T) {
	var asked atomic.Int32
	var extra atomic.Int32 // additional tokens of the engine for a video
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var q struct {
			Messages []struct {
				Content []struct {
					Type string
					UUID string
				}
			}
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.Unmarshal(body, &q); err != nil || r.URL.Path != "/v1/chat/completions" || q.MaxTokens != 1 {
			t.Errorf("%s %.200s: %v", r.URL.Path, body, err)
		}
		asked.Add(1)
		tokens, first := 10, q.Messages[0].Content[0]
		switch first.Type {
		case "image_url":
			tokens += 7
		case "video_url":
			tokens += 7 + int(extra.Load())
		case "input_audio":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"no sounds today"}}`)
			return
		}
		if (first.UUID == "") != (first.Type == "text") {
			t.Errorf("%s is called %q", first.Type, first.UUID)
		}
		fmt.Fprintf(w, `{"usage":{"prompt_tokens":%d}}`, tokens)
	})
	extra.Store(3)
	var rendered atomic.Int32
	b := base(t, s.URL, func(c *Config) {
		c.Card.Media, c.Card.MediaKeys, c.Card.ContextLength = []string{"audio", "image", "video"}, engine.MediaKeysUUID, 4096
		c.MediaCounting = &MediaCounting{
			Family: sights(t),
			LocalPrompt: func(_ context.Context, _ media.Kind, url string) (MediaPrompt, error) {
				if strings.HasPrefix(url, "data:video/gif") {
					return MediaPrompt{}, errors.New("that is beyond us")
				}
				shown := MediaPrompt{Tokens: make([]kv.Token, 20+min(len(url), 7))}
				if url != "" {
					shown.Objects = []media.Object{{Key: media.BytesKey([]byte(url))}}
				}
				return shown, nil // this template adds ten tokens, with media and without
			},
			RenderTokens: func(context.Context, []byte) (int, error) {
				rendered.Add(1)
				return 0, fault.New(fault.Unimplemented, "nothing is rendered")
			},
		}
	})
	if b.AwaitStartChecks(t.Context()); len(b.MediaChecks()) != 5 {
		t.Errorf("%d samples are compared when the first comparison has ended", len(b.MediaChecks()))
	}
	lists := make(chan []string, 8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = b.WatchMediaCounts(ctx, func(k []string) { lists <- k }) }()
	for k := range lists {
		if slices.Equal(k, []string{"video"}) {
			break
		}
	}
	var said []string
	for _, c := range b.MediaChecks() {
		said = append(said, fmt.Sprintf("%s %d %d %t %s", c.Kind, c.Counted, c.Reported, c.Differs(), c.Unchecked))
	}
	want := []string{
		"image 7 7 false ", "image 7 7 false ", "video 7 10 true ", "video 0 0 false it is not counted here: that is beyond us",
		"audio 0 0 false the engine refuses the request: no sounds today",
	}
	if !slices.Equal(said, want) {
		t.Errorf("%q", said)
	}
	i := slices.IndexFunc(b.Warnings(), func(w engine.Warning) bool { return w.Code == engine.WarnMediaCounts })
	if i < 0 || !strings.Contains(b.Warnings()[i].Detail, "makes 10 tokens of a JPEG sequence of 40 frames and 7 are counted here: requests that show video") {
		t.Errorf("%+v", b.Warnings())
	}
	if st := b.Stats(); st.Calls != 0 || st.Compared != 0 || b.Load().Running != 0 || asked.Load() != 5 || rendered.Load() != 5 {
		t.Errorf("%+v, %+v, asked %d times, %d of it to render", st, b.Load(), asked.Load(), rendered.Load())
	}
	extra.Store(0)
	b.mediaCounts.requestRecount()
	if k := <-lists; len(k) != 0 {
		t.Errorf("%v after a start that mends it", k)
	}
}

// TestCountsNotCompared checks that the engine is not asked where nothing depends on counts, or where another
// rank compares them.
func TestCountsNotCompared(t *testing.T) {
	here := func(context.Context, media.Kind, string) (MediaPrompt, error) { return MediaPrompt{}, nil }
	named := engine.Card{MediaKeys: engine.MediaKeysUUID}
	for name, c := range map[string]struct {
		o    OpenConfig
		card engine.Card
		want bool
	}{
		"compared":          {OpenConfig{Family: sights(t), LocalPrompt: here, Spec: Spec{Rank: AnyRank}}, named, true},
		"the first rank":    {OpenConfig{Family: sights(t), LocalPrompt: here}, named, true},
		"takes tokens":      {OpenConfig{Family: sights(t), LocalPrompt: here}, engine.Card{AcceptsObjects: true}, true},
		"another rank":      {OpenConfig{Family: sights(t), LocalPrompt: here, Spec: Spec{Rank: 1}}, named, false},
		"told nothing":      {OpenConfig{Family: sights(t), LocalPrompt: here}, engine.Card{}, false},
		"unknown family":    {OpenConfig{LocalPrompt: here}, named, false},
		"switched off":      {OpenConfig{Family: sights(t)}, named, false},
		"prompts elsewhere": {OpenConfig{Family: sights(t), LocalPrompt: here, EnginePrompts: true}, named, false},
		"nothing is served": {OpenConfig{}, engine.Card{}, false},
	} {
		if got := c.o.MediaCounting(&c.card, nil); (got != nil) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
