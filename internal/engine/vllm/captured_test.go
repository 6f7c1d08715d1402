package vllm

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
)

// The directories of testdata/captured have responses of real servers of several versions
// (test/interop/engines/capture.py): a mock of this repository would only show its author's assumptions.

const (
	recordedVocabulary = 1730
	recordedEOS        = 1715
	recordedBlock      = 32
)

// told returns the content of a recorded stream, read without the adapter's code.
func told(t *testing.T, r enginetest.Recording) (tokens []kv.Token, cached int, finish engine.Finish) {
	t.Helper()
	cached = engine.CachedUnknown // 0.16's second path does not report it
	for _, chunk := range r.Chunks(t) {
		for _, c := range chunk["choices"].([]any) {
			choice := c.(map[string]any)
			for _, n := range choice["token_ids"].([]any) {
				tokens = append(tokens, kv.Token(n.(float64)))
			}
			switch choice["finish_reason"] {
			case "stop":
				finish = engine.FinishStop
			case "length":
				finish = engine.FinishLength
			}
		}
		if usage, ok := chunk["usage"].(map[string]any); ok {
			cached = 0 // old versions report null if nothing was cached
			if details, ok := usage["prompt_tokens_details"].(map[string]any); ok {
				cached = int(details["cached_tokens"].(float64))
			}
		}
	}
	return tokens, cached, finish
}

// question is the body of a recording, on either path.
type question struct {
	Prompt   []kv.Token `json:"prompt"`
	Tokens   []kv.Token `json:"token_ids"`
	Sampling *question  `json:"sampling_params"`
	Max      int        `json:"max_tokens"`
	Stops    []kv.Token `json:"stop_token_ids"`
	Logprobs int        `json:"logprobs"`
}

// request returns the engine.Request for which an adapter sends this body.
func (q *question) request(name string) *engine.Request {
	with := q
	if q.Sampling != nil {
		with = q.Sampling
	}
	req := &engine.Request{
		ID: name, Attempt: 1, Choices: 1, Logprobs: -1, Model: "tiny", Prompt: append(q.Prompt, q.Tokens...),
		Stop: engine.Stop{MaxTokens: with.Max, Tokens: with.Stops},
	}
	if with.Logprobs > 0 {
		req.Logprobs = with.Logprobs
	}
	return req
}

func TestCapturedAnswers(t *testing.T) {
	dirs, err := filepath.Glob("testdata/captured/*/http")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, dir := range dirs {
		version := filepath.Base(filepath.Dir(dir))
		for path, other := range map[string]string{pathCompletions: pathGenerate, pathGenerate: pathCompletions} {
			t.Run(version+path, func(t *testing.T) { answered(t, dir, version, path, other) })
		}
	}
}

// answered checks an adapter that can use only path with a version's responses.
func answered(t *testing.T, dir, version, path, other string) {
	s := spec(t, enginetest.ServeRecorded(t, dir, other).URL)
	s.Mode = remote.ModeTokens
	e := enginetest.OpenAdapter(t, Open, Config{
		Spec: s, Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: recordedVocabulary,
		EOS: []kv.Token{recordedEOS}, Log: slog.New(slog.DiscardHandler),
	})
	ctx := enginetest.Start(t, e)
	card := e.Card()
	if card.Name != "tiny" || card.ContextLength != 512 || card.BlockSize != recordedBlock || card.Blocks != 256 {
		t.Errorf("the card is %+v", card)
	}
	if !strings.Contains(card.Numerics, strings.TrimPrefix(version, "vllm-")) {
		t.Errorf("the version is not in %q", card.Numerics)
	}
	seen := 0
	for _, r := range enginetest.ReadRecordings(t, dir) {
		var asked question
		if r.Path != path || !strings.HasPrefix(r.Name, "ask-") {
			continue
		}
		if err := json.Unmarshal(r.Body, &asked); err != nil {
			t.Fatal(err)
		}
		seen++
		want, cached, finish := told(t, r)
		req := asked.request(r.Name)
		got := enginetest.MustGenerate(t, ctx, e, req)[0]
		if !slices.Equal(got.Tokens, want) || got.Finish != finish {
			t.Errorf("%s: tokens %v, %v; the server sent %v, %v", r.Name, got.Tokens, got.Finish, want, finish)
		}
		if got.Cached != cached {
			t.Errorf("%s: %d cached tokens, the server said %d", r.Name, got.Cached, cached)
		}
		if req.Logprobs > 0 && (len(got.Logprobs) != len(want) || got.Logprobs[0].Token != want[0] || len(got.Logprobs[0].Top) != req.Logprobs) {
			t.Errorf("%s: log-probabilities %+v", r.Name, got.Logprobs)
		}
	}
	if seen != 6 {
		t.Errorf("%d recordings of %s, want 6", seen, path)
	}
}
