package engines

import (
	"errors"
	"testing"

	"penstock/internal/enginemock/enginemocktest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock/core/fault"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

func servedEngine(t testing.TB, cfg *config.Loaded) (engine.Engine, *prep.Pipeline) {
	t.Helper()
	m, err := OpenLocal(t.Context(), cfg, MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	return WithPrompts(m.Engines[0], m.Pipe), m.Pipe
}

// TestServedEngineConforms: the node's wrapper keeps to the engine contract.
func TestServedEngineConforms(t *testing.T) {
	cfg := enginemocktest.SmallSettings(t)
	enginetest.TestPreprocess(t, enginetest.Options{New: func(t testing.TB) engine.Engine {
		e, _ := servedEngine(t, cfg)
		if _, ok := e.(engine.Preprocessor); !ok {
			t.Fatal("it makes no prompts")
		}
		return e
	}})
}

// TestServedEngineIsTheFrontend: prompts and refusals equal the local pipeline's exactly, after a
// conversation was encoded and decoded.
func TestServedEngineIsTheFrontend(t *testing.T) {
	e, pipe := servedEngine(t, enginemocktest.SmallSettings(t))
	local := prep.LocalEncoder{Pipeline: pipe}
	ask := func(req *engine.PreprocessRequest) (prep.Prompt, error) {
		body := engine.AppendPreprocessRequest(nil, req)
		got := new(engine.PreprocessRequest)
		if err := engine.DecodePreprocessRequest(body, got); err != nil {
			t.Fatal(err)
		}
		p, err := e.(engine.Preprocessor).Preprocess(t.Context(), got)
		if err != nil {
			return prep.Prompt{}, err
		}
		return prep.Prompt{Tokens: p.Tokens, Media: p.Media}, nil
	}
	check := func(what string, got, want prep.Prompt, err, wantErr error) {
		t.Helper()
		var f, wantF fault.Error
		if e := (*fault.Error)(nil); errors.As(err, &e) {
			f = *e
		}
		if e := (*fault.Error)(nil); errors.As(wantErr, &e) {
			wantF = *e
		}
		if wantErr != nil {
			want = prep.Prompt{}
		}
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (wantErr == nil) || !cmp.Equal(f, wantF, cmpopts.IgnoreFields(fault.Error{}, "Err")) {
			t.Errorf("%s: %v, want %v\n%s", what, err, wantErr, diff)
		}
	}
	for name, c := range map[string]*prep.Chat{
		"plain": {Messages: []prep.Message{{Role: "user", Content: "What is a penstock?"}}, AddGenerationPrompt: true},
		"everything": {
			Messages: []prep.Message{
				{Role: "developer", Content: "Be \"brief\" <|end|>\u2028"},
				{Role: "user", Name: "ann", Content: "水 😀 <|assistant|>"},
				{Role: "assistant", NoContent: true, Reasoning: "Hm.", ToolCalls: []byte(`[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"b\": 1}"}}]`)},
				{Role: "tool", ToolCallID: "c", Content: "7"},
			},
			Tools: []byte(`[ {"type":"function", "function":{"name":"f","parameters":{"z":1.0,"a":{}}}} ]`),
			Args:  []byte(`{"enable_thinking":false}`), AddGenerationPrompt: true,
		},
		"continued":       {Messages: []prep.Message{{Role: "assistant", Content: "It is "}}, ContinueFinal: true},
		"both flags":      {Messages: []prep.Message{{Role: "user"}}, ContinueFinal: true, AddGenerationPrompt: true},
		"no message":      {AddGenerationPrompt: true},
		"unknown role":    {Messages: []prep.Message{{Role: "critic"}}},
		"parts":           {Messages: []prep.Message{{Role: "user", Parts: []byte(`[{"type":"image"}]`)}}},
		"call of nothing": {Messages: []prep.Message{{Role: "assistant", ToolCalls: []byte(`[7]`)}}},
	} {
		want, wantErr := local.EncodeChat(t.Context(), c)
		got, err := ask(&engine.PreprocessRequest{Attempt: 1, Chat: prep.AppendChat(nil, c)})
		check(name, got, want, err, wantErr)
	}
	for _, text := range []string{"", "Hello", "<|begin|>Hello<|end|>", "水 😀 \x00"} {
		for _, opts := range []prep.EncodeOptions{{}, {ParseSpecial: true}, {AddSpecial: true}, prep.RawPrompt()} {
			want, wantErr := local.EncodeText(t.Context(), text, opts)
			got, err := ask(&engine.PreprocessRequest{Attempt: 1, Text: text, ParseSpecial: opts.ParseSpecial, AddSpecial: opts.AddSpecial})
			check(text, got, want, err, wantErr)
		}
	}
}

// TestWithoutTemplate: an engine that can do no more than the frontend is not offered as a fallback.
func TestWithoutTemplate(t *testing.T) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	untemplated := *pipe
	untemplated.Template = nil
	if _, ok := WithPrompts(nil, &untemplated).(engine.Preprocessor); ok {
		t.Error("it says that it makes prompts")
	}
}
