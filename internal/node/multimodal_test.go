package node

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"penstock/internal/enginemock/enginemocktest"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/node/planes"
	"penstock/internal/obs"
	"penstock/internal/plane/rpc"
)

// squarePNG is a picture in one colour, as a file.
func squarePNG(t *testing.T, shade uint8) []byte {
	t.Helper()
	p := image.NewRGBA(image.Rect(0, 0, 112, 112))
	for i := range 112 * 112 {
		p.SetRGBA(i%112, i/112, color.RGBA{shade, 0, 0, 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newMediaRouter returns a router process which resolves media, with only the parts needed for that, and its
// log.
func newMediaRouter(t *testing.T, settings ...string) (*routerRole, *bytes.Buffer) {
	t.Helper()
	env := []string{"PENSTOCK_NATS_LISTEN=127.0.0.1:0", "PENSTOCK_MULTIMODAL=true", "PENSTOCK_MEDIA_ALLOW_PRIVATE=true"}
	cfg, err := config.Load("", append(env, settings...), config.NoFlags(config.Router))
	if err != nil {
		t.Fatal(err)
	}
	said := &bytes.Buffer{}
	p := &process{cfg: cfg, log: slog.New(slog.NewTextHandler(said, nil)), metrics: obs.NewMetrics()}
	if p.fetcher, err = newFetcher(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.fetcher.Close(); err != nil {
			t.Error(err)
		}
	})
	p.planes = &planes.Set{RPC: rpc.NewMemPlane()}
	r := &routerRole{process: p, encodeSem: make(chan struct{}, 2)}
	if r.mediaResolver, err = newMediaResolver(p); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- r.mediaResolver.lender.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	return r, said
}

// mediaCard is the card of the built-in model.
func mediaCard(t *testing.T, transfer string) engine.Card {
	t.Helper()
	eng, _ := openServedEngine(t, enginemocktest.SmallSettings(t))
	card := eng.Card()
	if transfer != "" {
		card.MediaDecoder = &engine.MediaDecoder{Transfer: transfer}
	}
	return card
}

// preprocessRequest is a request with pictures.
func preprocessRequest(urls ...string) *engine.PreprocessRequest {
	c := &prep.Chat{AddGenerationPrompt: true, Namespace: "n"}
	parts := prep.AppendTextPart([]byte{'['}, "What is this?")
	for _, u := range urls {
		parts = prep.AppendMediaPart(parts, media.Image)
		c.Media = append(c.Media, prep.Media{Kind: media.Image, URL: u, Part: "messages[0].content[1]", Param: "messages[0].content[1].image_url.url"})
	}
	c.Messages = []prep.Message{{Role: "user", Parts: append(parts, ']')}}
	return &engine.PreprocessRequest{Attempt: 3, Model: "m", Chat: prep.AppendChatWithMedia(nil, c), ResolveMedia: true}
}

// TestSightOfRouter: a router process returns identities of a few bytes, and lends the decoded picture of the
// request, and no picture which its URL has later.
func TestSightOfRouter(t *testing.T) {
	var shows atomic.Pointer[[]byte]
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(*shows.Load()) }))
	defer files.Close()
	for _, transfer := range []string{"", "off", "shm", "network"} {
		one, other := squarePNG(t, 10), squarePNG(t, 200)
		shows.Store(&one)
		r, said := newMediaRouter(t)
		sight := r.newModelMediaResolver(mediaCard(t, transfer))
		if sight == nil {
			t.Fatal(said)
		}
		url := files.URL + "/" + transfer
		p, err := sight.Preprocess(t.Context(), preprocessRequest(url))
		if err != nil || p.TextOnly != media.NoReason || len(p.Objects) != 1 || p.Attempt != 3 || p.Validate(1<<20) != nil {
			t.Fatalf("%s: %v, %+v", transfer, err, p)
		}
		if o := p.Objects[0]; o.Source != "" || o.Part != "" || !o.Tensor.IsZero() || (o.Identity == media.ByPixels) != (transfer != "") {
			t.Errorf("%s: found out was %+v", transfer, o)
		}
		object := p.Objects[0]
		object.Source, object.Part = url, "messages[0].content[1]"
		given := []media.Object{object}
		got, release := sight.Attach(t.Context(), given)
		if !given[0].Tensor.IsZero() || given[0].Source != url {
			t.Errorf("%s: the caller's object is %+v", transfer, given[0])
		}
		want := map[string][3]bool{"": {true}, "off": {true}, "shm": {true, true, false}, "network": {false, false, true}}[transfer]
		if is := [3]bool{got[0].Source != "", got[0].Tensor.Place != "", got[0].Tensor.Data != nil}; is != want {
			t.Errorf("%s: attached is (URL, place, data) %v, want %v", transfer, is, want)
		}
		again, free := sight.Attach(t.Context(), got)
		if again[0].Tensor.Place != got[0].Tensor.Place {
			t.Errorf("%s: what was attached is attached again", transfer)
		}
		free()
		release()
		gone, leave := context.WithCancel(t.Context())
		leave()
		elsewhere := object
		elsewhere.Source += "?other"
		if got, free := sight.Attach(gone, []media.Object{elsewhere}); !got[0].Tensor.IsZero() || got[0].Source == "" {
			t.Errorf("%s: %+v after the client left", transfer, got)
		} else {
			free()
		}
		shows.Store(&other)
		got, release = sight.Attach(t.Context(), []media.Object{elsewhere})
		if !got[0].Tensor.IsZero() || got[0].Source == "" {
			t.Errorf("%s: another picture is attached", transfer)
		}
		release()
		if n, _ := r.mediaResolver.lender.Usage(); n != 0 {
			t.Errorf("%s: %d objects are lent", transfer, n)
		}
	}
}

// TestSightRefuses: errors for the client and reasons for routing by text are distinguished.
func TestSightRefuses(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	defer page.Close()
	r, _ := newMediaRouter(t, "PENSTOCK_MEDIA_IDENTITY=bytes")
	sight := r.newModelMediaResolver(mediaCard(t, ""))
	p, err := sight.Preprocess(t.Context(), preprocessRequest(page.URL))
	if err != nil || p.TextOnly != media.DimensionsUnknown || p.TextOnlyError.Param != "messages[0].content[1].image_url.url" || len(p.Tokens) == 0 {
		t.Errorf("%v, %+v", err, p)
	}
	for url, says := range map[string]string{"http://169.254.169.254/": "may be fetched", "data:image/png;base64,%%%": "data: URI"} {
		if _, err := sight.Preprocess(t.Context(), preprocessRequest(url)); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", url, err)
		}
	}
	if p, err := sight.Preprocess(t.Context(), &engine.PreprocessRequest{Attempt: 1, Text: "hi"}); err != nil || len(p.Tokens) == 0 {
		t.Errorf("a text: %v", err)
	}
	for name, bad := range map[string]*engine.PreprocessRequest{"no attempt": {Text: "x"}, "no JSON": {Attempt: 1, ResolveMedia: true, Chat: []byte("x")}} {
		if _, err := sight.Preprocess(t.Context(), bad); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.encodeSem <- struct{}{} // all workers are busy
	r.encodeSem <- struct{}{}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := sight.Preprocess(gone, preprocessRequest(page.URL)); err == nil {
		t.Error("somebody who left had a turn")
	}
}

// TestNoSight: a model whose media cannot be resolved is served without, and the log says why.
func TestNoSight(t *testing.T) {
	for name, c := range map[string]struct {
		ref  engine.TokenizerRef
		says string
	}{
		"of the engine": {engine.TokenizerRef{Kind: engine.TokenizerOfEngine}, "--model-path"},
		"not here":      {engine.TokenizerRef{Kind: "dir", Dir: filepath.Join(t.TempDir(), "none")}, "--model-path"},
		"of others":     {engine.TokenizerRef{Kind: "builtin", Digest: strings.Repeat("0", 64)}, "the same checkpoint"},
	} {
		r, said := newMediaRouter(t)
		card := mediaCard(t, "")
		card.Tokenizer = c.ref
		if r.newModelMediaResolver(card) != nil || !strings.Contains(said.String(), c.says) {
			t.Errorf("%s: %s", name, said)
		}
	}
}
