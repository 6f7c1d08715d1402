package llamacpp

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
)

// The directories of testdata/captured have responses of real servers (test/interop/engines/capture.py): a
// mock of this repository would only show its author's assumptions.

const (
	recordedVocabulary = 1730
	recordedEOS        = 1715
)

// told returns the content of a recorded stream, read without the adapter's code. The real server reports
// progress in events with a token 0 that was not drawn.
func told(t *testing.T, r enginetest.Recording) (tokens []kv.Token, cached int, eos bool) {
	t.Helper()
	for _, chunk := range r.Chunks(t) {
		if chunk["prompt_progress"] != nil {
			continue
		}
		for _, n := range chunk["tokens"].([]any) {
			tokens = append(tokens, kv.Token(n.(float64)))
		}
		if chunk["stop"] == true {
			cached = int(chunk["timings"].(map[string]any)["cache_n"].(float64))
			eos = chunk["stop_type"] == "eos"
		}
	}
	return tokens, cached, eos
}

func TestCapturedAnswers(t *testing.T) {
	dirs, err := filepath.Glob("testdata/captured/*/http")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			u, err := url.Parse(enginetest.ServeRecorded(t, dir).URL)
			if err != nil {
				t.Fatal(err)
			}
			e := opened(t, Config{
				Spec:      remote.Spec{Kind: "llamacpp", URL: u, Rank: remote.AnyRank, Ranks: 1, Mode: remote.ModeTokens},
				Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: recordedVocabulary, EOS: []kv.Token{recordedEOS},
			})
			ctx := enginetest.Start(t, e)
			if card := e.Card(); card.Name != "tiny" || card.ContextLength != 512 || !card.KVPredicted {
				t.Errorf("the card is %+v", card)
			}
			for _, r := range enginetest.ReadRecordings(t, dir) {
				var asked struct {
					Prompt  []kv.Token `json:"prompt"`
					Predict int        `json:"n_predict"`
					Probs   int        `json:"n_probs"`
				}
				if r.Path != "/completion" || r.Name[:4] != "ask-" || json.Unmarshal(r.Body, &asked) != nil {
					continue
				}
				want, cached, eos := told(t, r)
				req := &engine.Request{
					ID: r.Name, Attempt: 1, Choices: 1, Logprobs: -1, Prompt: asked.Prompt, Model: "tiny",
					Stop: engine.Stop{MaxTokens: asked.Predict},
				}
				if asked.Probs > 0 {
					req.Logprobs = asked.Probs
				}
				got := enginetest.MustGenerate(t, ctx, e, req)[0]
				finish := engine.FinishLength
				if eos {
					finish = engine.FinishStop
				}
				if !slices.Equal(got.Tokens, want) || got.Finish != finish {
					t.Errorf("%s: tokens %v, %v; the server sent %v, %v", r.Name, got.Tokens, got.Finish, want, finish)
				}
				if got.Cached != cached {
					t.Errorf("%s: %d cached tokens, the server said %d", r.Name, got.Cached, cached)
				}
				if asked.Probs > 0 && (len(got.Logprobs) != len(want) || len(got.Logprobs[0].Top) != asked.Probs || got.Logprobs[0].Token != want[0]) {
					t.Errorf("%s: log-probabilities %+v", r.Name, got.Logprobs)
				}
			}
		})
	}
}
