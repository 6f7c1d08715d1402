package openai

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/fixturetest"
)

func TestDecodeTokenize(t *testing.T) {
	chat := func(change func(*api.Request)) TokenizeRequest {
		q := TokenizeRequest{AddSpecial: true, Chat: api.Request{
			Endpoint: api.Chat, Model: "m", AddGenerationPrompt: true, Messages: []api.Message{{Role: "user", Content: "hi"}},
		}}
		change(&q.Chat)
		return q
	}
	text := TokenizeRequest{Prompt: "hi", AddSpecial: true, Chat: api.Request{Endpoint: api.Chat, Model: "m", AddGenerationPrompt: true}}
	bare := text
	bare.AddSpecial, bare.Strings = false, true
	const call = `[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]`
	tests := []struct {
		fields string
		want   TokenizeRequest
	}{
		{`"prompt":"hi"`, text},
		{`"prompt":"hi","add_special_tokens":false,"return_token_strs":true,"tools":null`, bare},
		{`"messages":[{"role":"user","content":"hi"}]`, chat(func(*api.Request) {})},
		{`"messages":[{"role":"user","content":"hi"}],"tools":[` + function("f") + `]`, chat(func(r *api.Request) {
			r.Tools, r.ToolsJSON = []api.Tool{{Name: "f"}}, []byte(`[`+function("f")+`]`)
		})},
		{`"chat_template_kwargs":{"a":1},"messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":` + call + `}],"add_generation_prompt":false`, chat(func(r *api.Request) {
			r.Messages = append(r.Messages, api.Message{Role: "assistant", NoContent: true, ToolCalls: []byte(call)})
			r.TemplateArgs, r.AddGenerationPrompt = []byte(`{"a":1}`), false
		})},
		{`"messages":[{"role":"user","content":"hi"}],"continue_final_message":true`, chat(func(r *api.Request) {
			r.ContinueFinal, r.AddGenerationPrompt = true, false
		})},
	}
	d := described(t)
	for _, tt := range tests {
		body := []byte(`{"model":"m",` + tt.fields + `}`)
		got, err := DecodeTokenize(body)
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		if diff := cmp.Diff(&tt.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.fields, diff)
		}
		if err := d.matches(d.request("/tokenize"), body); err != nil {
			t.Errorf("%s: %v", tt.fields, err)
		}
	}
}

func TestDecodeTokenizeRefuses(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	for fields, param := range map[string]string{
		`"prompt":"hi"`:                                                                      "model",
		`"model":"m"`:                                                                        "prompt",
		`"model":"m","prompt":"hi",` + messages:                                              "prompt",
		`"model":"m","prompt":["hi"]`:                                                        "prompt",
		`"model":"m","messages":[]`:                                                          "messages",
		`"model":"m","messages":[{"role":"user"}]`:                                           "messages[0]",
		`"model":"m","add_special_tokens":true,` + messages:                                  "add_special_tokens",
		`"model":"m","prompt":"hi","tools":[]`:                                               "tools",
		`"model":"m","prompt":"hi","chat_template_kwargs":{}`:                                "chat_template_kwargs",
		`"model":"m","tools":[{"type":"custom"}],` + messages:                                "tools[0]",
		`"model":"m","chat_template_kwargs":[],` + messages:                                  "chat_template_kwargs",
		`"model":"m","chat_template":"x",` + messages:                                        "chat_template",
		`"model":"m","tool_choice":"none",` + messages:                                       "tool_choice",
		`"model":"m","prompt":"hi","prompt":"hi"`:                                            "prompt",
		`"model":"m","prompt":"hi","x":` + strings.Repeat(`[`, 99):                           "x",
		`"model":"m","tools":[{"a":` + strings.Repeat(`[`, 99) + `}],` + messages:            "",
		`"model":"m","continue_final_message":true,"add_generation_prompt":true,` + messages: "continue_final_message",
	} {
		_, err := DecodeTokenize([]byte(`{` + fields + `}`))
		if err == nil || fault.CodeOf(err) != fault.Invalid || api.AsFault(err).Param != param {
			t.Errorf("%.200s: %v of param %q, want %q", fields, err, api.AsFault(err).Param, param)
		}
	}
}

func TestDecodeDetokenize(t *testing.T) {
	got, err := DecodeDetokenize([]byte(`{"tokens":[1,4294967295],"model":"m"}`))
	if want := (&DetokenizeRequest{Model: "m", Tokens: []kv.Token{1, 4294967295}}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for body, param := range map[string]string{
		`{"model":"m"}`:                           "tokens",
		`{"tokens":[1]}`:                          "model",
		`{"model":"m","tokens":[-1]}`:             "tokens[0]",
		`{"model":"m","tokens":[1,4294967296]}`:   "tokens[1]",
		`{"model":"m","tokens":"1"}`:              "tokens",
		`{"model":"m","tokens":[1],"tokens":[1]}`: "tokens",
		`{"model":"m","tokens":[1],"x":1}`:        "x",
		`[]`:                                      "",
	} {
		_, err := DecodeDetokenize([]byte(body))
		if err == nil || fault.CodeOf(err) != fault.Invalid || api.AsFault(err).Param != param {
			t.Errorf("%s: %v of param %q, want %q", body, err, api.AsFault(err).Param, param)
		}
	}
}

func FuzzDecodeTokenize(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add([]byte(`{"model":"m","prompt":"a\u00e9","add_special_tokens":false,"return_token_strs":true}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{"type":"function","function":{"name":"f"}}],"chat_template_kwargs":{"a":1}}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}],"continue_final_message":true}`))
	d := described(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := DecodeTokenize(body)
		if err != nil {
			if fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("%v is not the client's affair", err)
			}
			return
		}
		if !json.Valid(body) || q.Chat.Model == "" || len(q.Chat.Messages) > 0 && q.Prompt != "" {
			t.Fatalf("decoded to %+v", q)
		}
		checkTools(t, &q.Chat)
		if err := d.matches(d.request("/tokenize"), body); err != nil {
			t.Fatalf("%q is taken: %v", body, err)
		}
	})
}

func FuzzDecodeDetokenize(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add([]byte(`{"model":"m","tokens":[1,2e1,4294967295]}`))
	f.Add([]byte(`{"model":null,"tokens":[]}`))
	d := described(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := DecodeDetokenize(body)
		if err != nil {
			if fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("%v is not the client's affair", err)
			}
			return
		}
		if !json.Valid(body) || q.Model == "" || q.Tokens == nil {
			t.Fatalf("decoded to %+v", q)
		}
		if err := d.matches(d.request("/detokenize"), body); err != nil {
			t.Fatalf("%q is taken: %v", body, err)
		}
	})
}
