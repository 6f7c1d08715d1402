package prep_test

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/edge/prep"
	"penstock/internal/fixturetest"
)

// full is a conversation with everything that one can have.
func full() *prep.Chat {
	return &prep.Chat{
		Messages: []prep.Message{
			{Role: "system", Content: "Be \"brief\".\n\u2028"},
			{Role: "user", Name: "ann", Parts: []byte(`[ {"type":"text","text":"What?"}, {"text":"é","type":"text"} ]`)},
			{Role: "assistant", NoContent: true, Reasoning: "Hm.", ToolCalls: []byte(`[{"id":"c1", "type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]`)},
			{Role: "tool", ToolCallID: "c1", Content: "7"},
		},
		Tools:         []byte(`[{"type":"function","function":{"name":"f","parameters":{"z":1.0,"a":{}}}}]`),
		Args:          []byte(`{"enable_thinking":false,"a":null}`),
		ContinueFinal: true,
	}
}

// showing is full with media.
func showing() *prep.Chat {
	c := full()
	c.Media = []prep.Media{
		{Kind: media.Image, URL: "https://a/\"1\"?x=<y>", Name: "cat", Part: "messages[1].content[2]", Param: "messages[1].content[2].image_url.url"},
		{Kind: media.Audio, URL: "data:audio/wav;base64,AAAA", Part: "messages[1].content[3]"},
	}
	c.Namespace, c.ProcessorArgs = "key\x00salt", true
	return c
}

// TestShown: what finds out about media is told of them, and nothing else is.
func TestShown(t *testing.T) {
	want := showing()
	got := prep.AppendChatWithMedia(nil, want)
	back, err := prep.DecodeChat(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, back); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(prep.AppendChat(nil, want), prep.AppendChat(nil, full())) {
		t.Error("an engine is told of media beside the parts")
	}
	for _, bad := range []string{`{"kind":"smell","url":"x"}`, `{"url":"x"}`, `{"kind":"image","size":1}`, `{"kind":null}`, `"image"`} {
		if _, err := prep.DecodeChat([]byte(`{"media":[` + bad + `]}`)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestChatIsWhole: full has a value for every field there is, so that one that is
// added cannot be forgotten on the way: the tests below would miss it.
func TestChatIsWhole(t *testing.T) {
	set := map[string]bool{
		"AddGenerationPrompt": true, // excluded by ContinueFinal
		"Features":            true, // beside it, in the request
		"Limit":               true, // for an encoder in this process
	}
	note := func(v reflect.Value) {
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			set[name] = set[name] || !v.Field(i).IsZero()
		}
	}
	c := full()
	note(reflect.ValueOf(*c))
	for _, m := range c.Messages {
		note(reflect.ValueOf(m))
	}
	shown := showing()
	note(reflect.ValueOf(*shown))
	note(reflect.ValueOf(shown.Media[0]))
	set["Halvings"] = true // it does not travel: only a process which resolves media itself halves them
	for name, ok := range set {
		if !ok {
			t.Errorf("no message of the tests has %s", name)
		}
	}
}

// TestChatDocumented reads the example of docs/format/engine.md.
func TestChatDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/format/engine.md")
	if err != nil {
		t.Fatal(err)
	}
	from := bytes.Index(doc, []byte(`{"messages"`))
	length := bytes.Index(doc[from:], []byte("\n\n"))
	c, err := prep.DecodeChat(doc[from : from+length])
	if err != nil || len(c.Messages) != 3 || len(c.Tools) == 0 || len(c.Args) == 0 || len(c.Messages[1].ToolCalls) == 0 {
		t.Errorf("%v: %+v", err, c)
	}
}

// TestChatBytes pins the form, and that JSON of the client's goes through as it is.
func TestChatBytes(t *testing.T) {
	const want = `{"messages":[{"role":"system","content":"Be \"brief\".\n\u2028"},` +
		`{"role":"user","name":"ann","content":[ {"type":"text","text":"What?"}, {"text":"é","type":"text"} ]},` +
		`{"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":[{"id":"c1", "type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]},` +
		`{"role":"tool","content":"7","tool_call_id":"c1"}],` +
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1.0,"a":{}}}}],` +
		`"chat_template_kwargs":{"enable_thinking":false,"a":null},"add_generation_prompt":false,"continue_final_message":true}`
	got := prep.AppendChat(nil, full())
	if string(got) != want {
		t.Errorf("encoded as\n%s\nwant\n%s", got, want)
	}
	back, err := prep.DecodeChat(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full(), back); diff != "" {
		t.Error(diff)
	}
	for i := range got { // nothing is kept of what was decoded
		got[i] = 'x'
	}
	if diff := cmp.Diff(full(), back); diff != "" {
		t.Error(diff)
	}
}

func TestChatRoundTrip(t *testing.T) {
	text := rapid.String()
	raw := func(of string) *rapid.Generator[[]byte] {
		return rapid.Custom(func(t *rapid.T) []byte {
			if rapid.Bool().Draw(t, "none") {
				return nil
			}
			return []byte(of)
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		want := &prep.Chat{
			Tools: raw(`[{"a" : [1e5, "\u00e9"]}]`).Draw(t, "tools"), Args: raw(`{"b":{}}`).Draw(t, "args"),
			AddGenerationPrompt: rapid.Bool().Draw(t, "add"), ContinueFinal: rapid.Bool().Draw(t, "continue"),
		}
		for range rapid.IntRange(0, 4).Draw(t, "messages") {
			m := prep.Message{
				Role: text.Draw(t, "role"), Name: text.Draw(t, "name"), Content: text.Draw(t, "content"),
				ToolCalls: raw(`[ ]`).Draw(t, "calls"), ToolCallID: text.Draw(t, "id"), Reasoning: text.Draw(t, "reasoning"),
			}
			if m.Parts = raw(`[{"type":"text","text":"x"}]`).Draw(t, "parts"); m.Parts != nil {
				m.Content = ""
			} else if m.Content == "" {
				m.NoContent = rapid.Bool().Draw(t, "no content")
			}
			want.Messages = append(want.Messages, m)
		}
		got, err := prep.DecodeChat(prep.AppendChat(nil, want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestDecodeChatAsWritten reads what others may write: a chat request leaves
// things out.
func TestDecodeChatAsWritten(t *testing.T) {
	got, err := prep.DecodeChat([]byte(` {"tools":null,"messages":[{"content":null,"role":"user"},{"role":"assistant"},{"role":"user","content":""}]} `))
	if err != nil {
		t.Fatal(err)
	}
	want := &prep.Chat{Messages: []prep.Message{{Role: "user", NoContent: true}, {Role: "assistant", NoContent: true}, {Role: "user"}}, AddGenerationPrompt: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeChatRefuses(t *testing.T) {
	for body, param := range map[string]string{
		``:                                 "",
		`{`:                                "",
		`[]`:                               "",
		`{"messages":[]} x`:                "",
		"{\"messages\":\xff}":              "",
		`{"messages":{}}`:                  "messages",
		`{"messages":["x"]}`:               "messages[0]",
		`{"messages":[{"role":7}]}`:        "messages[0].role",
		`{"messages":[{"content":7}]}`:     "messages[0].content",
		`{"messages":[{"tool_calls":{}}]}`: "messages[0].tool_calls",
		`{"messages":[{"images":[]}]}`:     "messages[0].images",
		`{"messages":[],"messages":[]}`:    "messages",
		`{"tools":{}}`:                     "tools",
		`{"chat_template_kwargs":[]}`:      "chat_template_kwargs",
		`{"add_generation_prompt":1}`:      "add_generation_prompt",
		`{"documents":[]}`:                 "documents",
	} {
		_, err := prep.DecodeChat([]byte(body))
		f := new(fault.Error)
		if !errors.As(err, &f) || f.Code != fault.Invalid || f.Param != param {
			t.Errorf("%q: %v (about %q), want an invalid %q", body, err, f.Param, param)
		}
	}
}

func FuzzDecodeChat(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(prep.AppendChat(nil, full()))
	f.Add(prep.AppendChatWithMedia(nil, showing()))
	f.Add([]byte(`{"messages":[{"role":"user","content":"hi"}]}`))
	f.Add([]byte(strings.Repeat(`{"messages":[`, 70)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := prep.DecodeChat(b)
		if err != nil {
			if fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("%v", err)
			}
			return
		}
		for i := range c.Messages {
			if m := &c.Messages[i]; m.Content != "" && (len(m.Parts) > 0 || m.NoContent) || m.NoContent && len(m.Parts) > 0 {
				t.Fatalf("message %d has more than one content, or none and one", i)
			}
		}
		again, err := prep.DecodeChat(prep.AppendChatWithMedia(nil, c))
		if err != nil {
			t.Fatalf("the encoding of a decoded conversation is refused: %v", err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
