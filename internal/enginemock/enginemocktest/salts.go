package enginemocktest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/enginemock"
)

// TestSalts requires of an adapter that no request reports cached tokens of another salt: either the engine
// keeps salts apart, or requests with a salt are refused and a warning is raised. open returns an adapter of
// a server with faults; passes are the passthrough paths which honour salts.
func TestSalts(t *testing.T, open func(t testing.TB, set ...enginemock.Fault) Adapter, passes ...string) {
	for _, c := range []struct {
		name  string
		set   []enginemock.Fault
		apart bool
	}{
		{"apart", nil, true},
		{"ignored", []enginemock.Fault{{Kind: enginemock.FaultSalts}}, false},
		{"unreported", []enginemock.Fault{{Kind: enginemock.FaultNoCached}}, false},
	} {
		t.Run(c.name, func(t *testing.T) { testSalts(t, open(t, c.set...), c.apart, passes) })
	}
}

// TestSaltsRefused requires that requests with a salt are refused by an adapter whose server ignores salts.
func TestSaltsRefused(t *testing.T, open func(t testing.TB, set ...enginemock.Fault) Adapter) {
	testSalts(t, open(t), false, nil)
}

func testSalts(t *testing.T, e Adapter, apart bool, passes []string) {
	s := &saltTest{t: t, ctx: enginetest.Start(t, e), e: e}
	s.testWay("tokens", apart, s.generateCached)
	warned := slices.ContainsFunc(e.Warnings(), func(w engine.Warning) bool { return w.Code == engine.WarnSaltsRefused && w.Remedy != "" })
	if warned == apart {
		t.Errorf("salts are apart: %v, warnings: %v", apart, e.Warnings())
	}
	for _, path := range e.PassthroughPaths() {
		s.testWay(path, apart && slices.Contains(passes, path), func(n int, salt string) (int, error) { return s.passCached(path, n, salt) })
	}
}

// saltTest sends requests with salts to an adapter.
type saltTest struct {
	t   *testing.T
	ctx context.Context
	e   Adapter
}

// testWay sends one prompt with the salts of two tenants, and without one.
func (s *saltTest) testWay(way string, apart bool, ask func(n int, salt string) (cached int, err error)) {
	s.t.Helper()
	seen := map[string]bool{}
	for n, salt := range []string{"one", "two", "one", "", "two", ""} {
		cached, err := ask(n, salt)
		switch f := (*fault.Error)(nil); {
		case salt != "" && !apart:
			if !errors.As(err, &f) || f.Code != fault.Ineligible || f.Param != "cache_salt" {
				s.t.Errorf("%s: a request under a salt: %d tokens cached, %v", way, cached, err)
			}
		case err != nil:
			s.t.Errorf("%s, salt %q: %v", way, salt, err)
		case !seen[salt] && cached >= 16: // fewer are the first tokens of all prompts
			s.t.Errorf("%s, salt %q: %d tokens of others are reported as cached", way, salt, cached)
		case seen[salt] && apart && way == "tokens" && cached == 0:
			s.t.Errorf("%s, salt %q: a prompt that was repeated is not cached", way, salt)
		}
		seen[salt] = true
	}
}

func (s *saltTest) generateCached(n int, salt string) (int, error) {
	prompt := make([]kv.Token, 100)
	for i := range prompt {
		prompt[i] = kv.Token(101 + i)
	}
	got, err := enginetest.Generate(s.ctx, s.e, &engine.Request{
		ID: fmt.Sprint("salted-", n), Attempt: 1, Choices: 1, Logprobs: -1, Model: s.e.Card().Name, Prompt: prompt,
		Salt: kv.Salt{Namespace: salt}, Stop: engine.Stop{MaxTokens: 2, IgnoreEOS: true},
	})
	if err != nil {
		return 0, err
	}
	return got[0].Cached, nil
}

func (s *saltTest) passCached(path string, n int, salt string) (int, error) {
	text := string(bytes.Repeat([]byte("sesame "), 40)) + path // unique to the path
	body := map[string]any{"model": "x", "max_tokens": 1, "prompt": text}
	if path != "/v1/completions" {
		delete(body, "prompt")
		body["messages"] = []any{map[string]any{"role": "user", "content": text}}
	}
	if salt != "" {
		body["cache_salt"] = salt
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	cached := 0
	err = s.e.PassThrough(s.ctx, &engine.PassthroughRequest{ID: fmt.Sprint("passed-", n), Attempt: 1, Model: s.e.Card().Name, Path: path, Body: raw}, func(p *engine.PassthroughChunk) error {
		cached = max(cached, p.Cached)
		return nil
	})
	return cached, err
}
