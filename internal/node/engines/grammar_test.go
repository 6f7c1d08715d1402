package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"penstock/internal/enginemock/enginemocktest"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
)

// TestGuidedAnswers asks the built-in model for JSON of a schema, and parses its decoded answer.
func TestGuidedAnswers(t *testing.T) {
	m, err := OpenLocal(t.Context(), enginemocktest.SmallSettings(t), MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	if !m.Card().StructuredOutput {
		t.Fatal("the built-in model's card is not guided")
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- m.Engines[0].Run(ctx) }()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	const schema = `{"type":"object","properties":{
		"city":{"type":"string","maxLength":30},
		"größe":{"enum":["klein","groß"]},
		"temperature":{"type":"number","minimum":-40,"maximum":60},
		"days":{"type":"array","items":{"type":"string","format":"date"},"minItems":1,"maxItems":3}},
		"required":["city","größe","temperature","days"],"additionalProperties":false}`
	var answer struct {
		City        string
		Größe       string
		Temperature float64
		Days        []string
	}
	for seed := range uint64(8) {
		req := &engine.Request{
			ID: fmt.Sprint(seed), Attempt: 1, Choices: 1, Logprobs: -1,
			Prompt: m.Pipe.EncodeText(nil, "The weather, as JSON:"),
			Stop:   engine.Stop{MaxTokens: 400}, OutputSchema: &engine.OutputSchema{Schema: []byte(schema)},
			Sampling: engine.Sampling{Temperature: 1, Seed: seed},
		}
		text, finish := generateText(t, m, req)
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&answer); err != nil || finish != engine.FinishStop {
			t.Fatalf("seed %d: finish %d, %q: %v", seed, finish, text, err)
		}
		if answer.Temperature < -40 || answer.Temperature > 60 || len(answer.Days) == 0 || answer.Größe != "klein" && answer.Größe != "groß" {
			t.Errorf("seed %d: %q", seed, text)
		}
	}
}

func generateText(t *testing.T, m *LocalModel, req *engine.Request) (string, engine.Finish) {
	t.Helper()
	var tokens []kv.Token
	var finish engine.Finish
	err := m.Engines[0].Generate(t.Context(), req, func(d *engine.Delta) error {
		tokens, finish = append(tokens, d.Tokens...), d.Finish
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	decoder := m.Pipe.Tokenizer.NewDecoder(prep.DecodeOptions{})
	var text []byte
	for _, token := range tokens {
		text = decoder.Push(text, token)
	}
	return string(decoder.Flush(text)), finish
}

// TestTokenText: the texts of tokens are known if they do not depend on the preceding text.
func TestTokenText(t *testing.T) {
	builtin, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	text := tokenText(builtin)
	if text == nil {
		t.Fatal("the built-in tokenizer's are not")
	}
	id, _ := builtin.ID("{")
	if b, ok := text([]byte("x"), id); !ok || string(b) != "x{" {
		t.Errorf("{ has the text %q, %v", b, ok)
	}
	if eos, _ := builtin.EOS(); builtin.IsSpecial(eos) {
		if b, ok := text(nil, eos); ok || len(b) != 0 {
			t.Errorf("a special token has the text %q", b)
		}
	}
	const metaspace = `{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"post_processor":null,
		"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},
		"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["▁",-1],["▁a",-1],["{",-2],["}",-2]],"byte_fallback":false}}`
	const pieces = `{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":null,
		"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
		"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"{":1,"##{":2}}}`
	for _, c := range []struct {
		name, file string
		known      bool
	}{{"Metaspace", metaspace, true}, {"WordPiece", pieces, false}} {
		tok, err := token.Parse([]byte(c.file), nil)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if known := tokenText(tok) != nil; known != c.known {
			t.Errorf("%s: known %v, want %v", c.name, known, c.known)
		}
	}
}
