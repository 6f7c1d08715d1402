package vllm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
)

// looking returns a request for the prompt of a conversation that shows a picture.
func looking(features bool) *engine.PreprocessRequest {
	chat := `{"messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},` + string(remote.SamplePart("image")) + `]}]}`
	return &engine.PreprocessRequest{ID: "p", Attempt: 1, Model: "tiny", Chat: []byte(chat), Features: features}
}

// about returns a request for n tokens after a rendered prompt.
func about(p *engine.Preprocessed, n int) *engine.Request {
	req := request(1, 0, n)
	req.Prompt, req.Media, req.Features = p.Tokens, p.Media, p.Features
	return req
}

// refusedFeatures reports whether err says that the request may be served if its media are sent as they are.
func refusedFeatures(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Code == fault.Unimplemented && f.Param == engine.FeaturesParam
}

// TestFeatures checks that a server can continue from another server's processed picture, also in the middle
// of an answer.
func TestFeatures(t *testing.T) {
	maker, taker := run(t, nil, nil), run(t, nil, nil)
	if !maker.Card().Features {
		t.Fatal("the server ships what it makes of pictures, and its card does not say so")
	}
	bare, err := maker.Preprocess(maker.ctx, looking(false))
	if err != nil || bare.Features != nil || len(bare.Media) != 1 {
		t.Fatalf("features were not asked for: %d bytes, %v, %v", len(bare.Features), bare.Media, err)
	}
	made, err := maker.Preprocess(maker.ctx, looking(true))
	if err != nil || len(made.Features) == 0 || !slices.Equal(made.Tokens, bare.Tokens) || !slices.Equal(made.Media, bare.Media) {
		t.Fatalf("%d bytes of features, %v", len(made.Features), err)
	}
	probed := taker.server.Processed()
	want := enginetest.MustGenerate(t, taker.ctx, taker.Engine, about(made, 12))[0].Tokens
	again := about(made, 12)
	again.Attempt, again.Generated = 2, [][]kv.Token{want[:5]}
	rest := enginetest.MustGenerate(t, taker.ctx, taker.Engine, again)[0].Tokens
	if len(want) != 12 || len(rest) != 7 { // the tokens themselves depend on the simulation
		t.Errorf("%v, and from the fifth token on %v", want, rest)
	}
	two := about(made, 4)
	two.Choices, two.Sampling.Temperature = 2, 1
	if out := enginetest.MustGenerate(t, taker.ctx, taker.Engine, two); len(out) != 2 || len(out[1].Tokens) != 4 {
		t.Errorf("two choices: %v", out)
	}
	if n := taker.server.Processed() - probed; n != 4 {
		t.Errorf("%d calls with what another server made, want 4", n)
	}
	plain := about(made, 4)
	plain.Features = nil
	if _, err := enginetest.Generate(taker.ctx, taker.Engine, plain); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a picture that was not sent: %v", err)
	}
}

// TestFeaturesRefused checks that for an engine that refuses features the request can be served without them,
// with a warning, and that the engine makes none for others.
func TestFeaturesRefused(t *testing.T) {
	r := run(t, nil, nil)
	made, err := r.Preprocess(r.ctx, looking(true))
	if err != nil {
		t.Fatal(err)
	}
	dataless := about(made, 4)
	at := bytes.Index(made.Features, []byte(`"kwargs_data":`))
	end := at + bytes.IndexByte(made.Features[at:], '}') + 1
	dataless.Features = slices.Concat(made.Features[:at], []byte(`"kwargs_data":null`), made.Features[end:])
	none := about(made, 4)
	none.Features = []byte(`{"mm_hashes":`)
	injected := about(made, 4)
	injected.Features = []byte(`{},"model":"other"`)
	for what, req := range map[string]*engine.Request{"half of them": none, "more than them": injected} {
		if _, err := enginetest.Generate(r.ctx, r.Engine, req); !refusedFeatures(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := codes(r.Warnings()); len(got) != 0 {
		t.Errorf("the engine has refused nothing: %v", got)
	}
	invalid := about(made, 4)
	if err := r.server.Faults().Set(enginemock.Fault{Kind: enginemock.FaultFeatures, Status: http.StatusBadRequest, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := enginetest.Generate(r.ctx, r.Engine, invalid); !refusedFeatures(err) || len(codes(r.Warnings())) != 0 {
		t.Errorf("what may be the client's mistake: %v, %v", err, r.Warnings())
	}
	if err := r.server.Faults().Set(enginemock.Fault{Kind: enginemock.FaultError, Status: http.StatusServiceUnavailable, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := enginetest.Generate(r.ctx, r.Engine, about(made, 4)); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("an engine that is away: %v", err)
	}
	if _, err := enginetest.Generate(r.ctx, r.Engine, dataless); !refusedFeatures(err) {
		t.Errorf("an error in place of the first token: %v", err)
	}
	if got := codes(r.Warnings()); !slices.Equal(got, []string{engine.WarnFeatures}) {
		t.Errorf("warnings: %v", got)
	}
	resumed := about(made, 8)
	resumed.Generated, resumed.Features = [][]kv.Token{{5, 6}}, dataless.Features
	if _, err := enginetest.Generate(r.ctx, r.Engine, resumed); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("an answer that has begun elsewhere can go on at a third: %v", err)
	}
	if p, err := r.Preprocess(r.ctx, looking(true)); err != nil || p.Features != nil || len(p.Media) != 1 {
		t.Errorf("it makes %d bytes for others, %v", len(p.Features), err)
	}
}

// TestFeaturesOff checks that features are not requested from a server that does not return or take them.
func TestFeaturesOff(t *testing.T) {
	for what, c := range map[string]struct {
		server func(*enginemock.Config)
		spec   func(*remote.Spec)
	}{
		"it fails over them":   {server: func(c *enginemock.Config) { c.Faults = []enginemock.Fault{{Kind: enginemock.FaultFeatures}} }},
		"without --scale-out":  {server: func(c *enginemock.Config) { c.Features.Tokens = enginemock.Off }},
		"requests as they are": {spec: func(s *remote.Spec) { s.Mode = remote.ModePassthrough }},
		"a model of texts": {server: func(c *enginemock.Config) {
			blind := *c.Pipe
			blind.SetFamily(nil)
			c.Pipe = &blind
		}},
	} {
		r := run(t, c.server, c.spec)
		if r.Card().Features {
			t.Errorf("%s, and features are offered", what)
		}
		if _, err := enginetest.Generate(r.ctx, r.Engine, about(&engine.Preprocessed{Tokens: []kv.Token{5, 6}, Media: []kv.Media{{Start: 0, End: 1}}, Features: []byte("{}")}, 1)); !refusedFeatures(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFeaturesTooLarge checks that features above the limit are omitted.
func TestFeaturesTooLarge(t *testing.T) {
	s, card := served(t, nil)
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	var large atomic.Bool
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u) }, Transport: transport, FlushInterval: -1}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if large.Load() && r.URL.Path == pathRender && !bytes.Contains(body, []byte(`"mm_payload":"none"`)) {
			_, _ = io.Copy(w, io.LimitReader(spaces{}, maxRendered+1))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { h.CloseClientConnections(); h.Close(); transport.CloseIdleConnections() })
	e := opened(t, spec(t, h.URL), card)
	ctx := enginetest.Start(t, e)
	for _, is := range []bool{false, true} {
		large.Store(is)
		p, err := e.Preprocess(ctx, looking(true))
		if err != nil || (p.Features == nil) != is || len(p.Media) != 1 {
			t.Errorf("large %v: %d bytes, %v", is, len(p.Features), err)
		}
	}
	if err := fetchPrompt(context.Background(), e.client, nil, pathRender, []byte("{}"), new(engine.Preprocessed)); !errors.Is(err, errFeaturesTooLarge) {
		t.Errorf("%.200s", strings.TrimSpace(err.Error()))
	}
}

// spaces is an endless stream of spaces.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}
