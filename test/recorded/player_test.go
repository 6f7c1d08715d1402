package main

import (
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// openPlayer returns the engine of a dialect among the recordings.
func openPlayer(t *testing.T, model string) *recordingEngine {
	t.Helper()
	dialects, err := loadDialects(os.DirFS(recordings))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(dialects, func(d *dialect) bool { return d.name == model })
	pipe, ref, err := openPipeline(dialects[i], t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := newRecordingEngine(dialects[i], pipe, ref)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (e *recordingEngine) request(words string) *engine.Request {
	return &engine.Request{
		ID: "r", Attempt: 1, Model: e.card.Name, Prompt: e.tokenizer.Encode(nil, words, prep.EncodeOptions{}),
		Choices: 1, Stop: engine.Stop{MaxTokens: 1000}, Logprobs: -1,
	}
}

// play returns the tokens of every choice, why it ended, and the call's error.
func play(t *testing.T, e *recordingEngine, req *engine.Request) (tokens [][]kv.Token, finish []engine.Finish, err error) {
	t.Helper()
	tokens, finish = make([][]kv.Token, req.Choices), make([]engine.Finish, req.Choices)
	for i, g := range req.Generated {
		tokens[i] = slices.Clone(g)
	}
	accepted := false
	err = e.Generate(t.Context(), req, func(d *engine.Delta) error {
		if d.Accepted == accepted || d.Attempt != req.Attempt || finish[d.Choice] != engine.NotFinished {
			t.Errorf("delta %+v after %v tokens", d, finish)
		}
		accepted = true
		if !d.Accepted && d.Pos != len(tokens[d.Choice]) {
			t.Errorf("delta %+v after %d tokens", d, len(tokens[d.Choice]))
		}
		if want := req.Logprobs >= 0 && !d.Accepted; want != (len(d.Logprobs) == 1) {
			t.Errorf("log-probabilities %+v", d.Logprobs)
		}
		tokens[d.Choice], finish[d.Choice] = append(tokens[d.Choice], d.Tokens...), d.Finish
		return nil
	})
	return tokens, finish, err
}

// inBubble runs f where time passes only while everything waits.
func inBubble(t *testing.T, f func(t *testing.T, e *recordingEngine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, openPlayer(t, "hermes")) })
}

func TestPlay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *recordingEngine) {
		got, finish, err := play(t, e, e.request("play:call and then play:parallel"))
		if err != nil || finish[0] != engine.FinishStop || !slices.Equal(got[0], e.recordings["parallel"].tokens) {
			t.Errorf("%v, %v, %v", got, finish, err)
		}
		if last := got[0][len(got[0])-1]; last != e.card.EOS[0] {
			t.Errorf("the last token is %d", last)
		}
		req := e.request("play:parallel")
		req.Stop.MaxTokens = 7
		if got, finish, err := play(t, e, req); err != nil || finish[0] != engine.FinishLength || len(got[0]) != 7 {
			t.Errorf("truncated: %v, %v, %v", got, finish, err)
		}
		for _, words := range []string{"", "play", "play:nothing", "play:text play:nothing"} {
			if _, _, err := play(t, e, e.request(words)); fault.CodeOf(err) != fault.Invalid {
				t.Errorf("%q: %v", words, err)
			}
		}
	})
}

func TestPlayResumed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *recordingEngine) {
		whole := e.recordings["parallel"].tokens
		for n := range whole {
			req := e.request("play:parallel")
			req.Choices, req.Logprobs, req.Attempt = 3, 2, 2
			req.Generated = [][]kv.Token{whole[:n], nil, whole}
			req.Done = []bool{false, false, true}
			got, finish, err := play(t, e, req)
			if err != nil || !slices.Equal(got[0], whole) || !slices.Equal(got[1], whole) || finish[0] != engine.FinishStop || finish[2] != engine.NotFinished {
				t.Fatalf("at %d: %v, %v", n, finish, err)
			}
		}
		req := e.request("play:text")
		req.Generated = [][]kv.Token{whole[:3]}
		if _, _, err := play(t, e, req); fault.CodeOf(err) != fault.Internal {
			t.Errorf("another answer: %v", err)
		}
	})
}

func TestPlayFails(t *testing.T) {
	inBubble(t, func(t *testing.T, e *recordingEngine) {
		req := e.request("play:migrated")
		if got, _, err := play(t, e, req); fault.CodeOf(err) != fault.Unavailable || len(got[0]) != 9 {
			t.Errorf("first attempt: %d tokens, %v", len(got[0]), err)
		}
		req.Attempt = 2
		if _, finish, err := play(t, e, req); err != nil || finish[0] != engine.FinishStop {
			t.Errorf("second attempt: %v, %v", finish, err)
		}
		_, _, err := play(t, e, e.request("play:refused"))
		var refused *fault.Error
		if !errors.As(err, &refused) || refused.Code != fault.Overloaded || refused.RetryAfter == 0 {
			t.Errorf("refused: %v", err)
		}
	})
}
