package sglang

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/png"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
)

func builtinFamily(t *testing.T) *family.Family {
	t.Helper()
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	return pipe.Family
}

// TestAttaches checks that media are sent with tokens if the family is known and all kinds of the model can
// be sent so.
func TestAttaches(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, withEvents)
	for _, c := range []struct {
		what     string
		change   func(*Config)
		attaches bool
		media    string
	}{
		{"a family", func(c *Config) { c.Family = builtinFamily(t) }, true, "audio image"},
		{"no family", func(*Config) {}, false, "audio image"},
		{"requests are passed on", func(c *Config) { c.Family, c.Spec.Mode = builtinFamily(t), remote.ModePassthrough }, false, "audio image"},
		{"the settings do not want it", func(c *Config) { c.Family, c.MediaKeys = builtinFamily(t), remote.MediaKeysOff }, false, "audio image"},
		{"videos too, by the settings", func(c *Config) { c.Family, c.Media = builtinFamily(t), []string{"video"} }, true, "video"},
	} {
		cfg := config(t, s, card)
		c.change(&cfg)
		got := opened(t, cfg).Card()
		if got.AcceptsObjects != c.attaches || strings.Join(got.Media, " ") != c.media {
			t.Errorf("%s: attaches %v, sees %v", c.what, got.AcceptsObjects, got.Media)
		}
	}
}

// look returns a request that shows a picture of 112 x 84 between two texts.
func look(t *testing.T, f *family.Family, key media.Key) *engine.Request {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 112, 84))); err != nil {
		t.Fatal(err)
	}
	place, _ := f.Placeholder(media.Image)
	layout, err := f.Layout(media.Image, media.Size{Width: 112, Height: 84})
	if err != nil {
		t.Fatal(err)
	}
	text := make([]kv.Token, 60)
	for i := range text {
		text[i] = kv.Token(300 + i)
	}
	prompt, places, err := media.ExpandPrompt(nil, nil, slices.Insert(text, 20, place), f.Placeholders(), []media.PromptObject{{Placeholder: place, Key: key, Layout: layout}}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return &engine.Request{
		ID: "look", Attempt: 1, Model: "tiny", Prompt: prompt, Media: places, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 8, IgnoreEOS: true},
		Objects: []media.Object{{Kind: media.Image, Key: key, Part: "messages[0].content[0]", Source: "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())}},
	}
}

// TestPictures checks that a picture is sent in place of its tokens, with its key, and is found in the cache
// again.
func TestPictures(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, withEvents)
	cfg := config(t, s, card)
	cfg.Family = builtinFamily(t)
	e := opened(t, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	cached := func(key string) int {
		got, err := enginetest.Generate(ctx, e, look(t, cfg.Family, media.URLKey(key, 0)))
		if err != nil {
			t.Fatal(err)
		}
		return got[0].Cached
	}
	if n := cached("a"); n != 0 {
		t.Errorf("the first: %d cached", n)
	}
	if n := cached("a"); n != 64 { // of 72
		t.Errorf("again: %d cached", n)
	}
	if n := cached("b"); n != 16 { // the block before it
		t.Errorf("another: %d cached", n)
	}
	broken := look(t, cfg.Family, media.URLKey("a", 0))
	broken.Objects[0].Source = ""
	if _, err := enginetest.Generate(ctx, e, broken); fault.CodeOf(err) != fault.Unimplemented || !strings.Contains(err.Error(), "--mm-transfer off") {
		t.Errorf("without a source: %v", err)
	}
	broken = look(t, cfg.Family, media.URLKey("a", 0))
	broken.Objects[0].Kind = media.Video
	if _, err := enginetest.Generate(ctx, e, broken); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("of a kind that the model does not see: %v", err)
	}
}

// TestKeysOfKinds checks that no keys are sent where the engine could assign them to wrong objects.
func TestKeysOfKinds(t *testing.T) {
	d := &generateDialect{}
	d.placeholders[media.Image], d.placeholders[media.Audio] = 7, 8
	one := media.Object{Kind: media.Image, Key: media.URLKey("a", 0), Source: "data:a"}
	two := media.Object{Kind: media.Image, Key: media.URLKey("b", 0), Source: "data:b"}
	sound := media.Object{Kind: media.Audio, Key: media.URLKey("c", 0), Source: "data:c"}
	for _, c := range []struct {
		of   []media.Object
		want string
	}{
		{[]media.Object{one, two}, `{"x":0,"image_data":["data:a","data:b"],"mm_hashes":["` + one.Key.Hex() + `","` + two.Key.Hex() + `"]}`},
		{[]media.Object{one, sound, two}, `{"x":0,"image_data":["data:a","data:b"],"audio_data":["data:c"]}`},
		{[]media.Object{{Kind: media.Image, Source: "data:a"}}, `{"x":0,"image_data":["data:a"]}`},
		{nil, `{"x":0}`},
	} {
		got := append(d.appendMedia([]byte(`{"x":0`), &engine.Request{Objects: c.of}), '}')
		if string(got) != c.want || !json.Valid(got) {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
