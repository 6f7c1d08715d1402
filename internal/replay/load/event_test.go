package load

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// deep is one level more than an event's values may have.
const deep = 65

func TestChunks(t *testing.T) {
	counted := tokenUsage{reported: true, prompt: 7, output: 3}
	cached := tokenUsage{reported: true, reportedCached: true, prompt: 7, output: 3, cache: 4}
	for _, tt := range []struct {
		text string
		want streamChunk
		bad  bool
	}{
		{text: `{}`},
		{text: `{"choices":[]}`},
		{text: `{"choices":[{"index":0,"text":"a"}]}`, want: streamChunk{text: true}},
		{text: `{"choices":[{"index":0,"text":""}]}`},
		{text: ` { "choices" : [ { "text" : "" } , { "text" : "\"" } ] } `, want: streamChunk{text: true}},
		{text: `{"choices":[{"delta":{"role":"assistant","content":""}}]}`},
		{text: `{"choices":[{"delta":{"content":null,"reasoning_content":"x"}}]}`, want: streamChunk{text: true}},
		{text: `{"choices":[{"delta":{"reasoning":"x"}}]}`, want: streamChunk{text: true}},
		{text: `{"choices":[{"delta":{"tool_calls":[]}}]}`},
		{text: `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, want: streamChunk{text: true}},
		{text: `{"choices":[{"text":"a","finish_reason":"stop"}]}`, want: streamChunk{text: true, finished: true}},
		{text: `{"choices":[{"text":"","finish_reason":null}]}`},
		{text: `{"choices":null,"usage":null,"error":null}`},
		{text: `{"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`, want: streamChunk{tokenUsage: counted}},
		{text: `{"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"audio_tokens":1,"cached_tokens":4}}}`, want: streamChunk{tokenUsage: cached}},
		{text: `{"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":null}}`, want: streamChunk{tokenUsage: counted}},
		{text: `{"usage":{"prompt_tokens":-7,"completion_tokens":3}}`, want: streamChunk{tokenUsage: tokenUsage{output: 3}}},
		{text: `{"error":{"message":"no","type":"server_error","code":500}}`, want: streamChunk{failed: true}},
		{text: `{"error":{"message":"no","type":"overloaded_error"}}`, want: streamChunk{failed: true, overloaded: true}},
		{text: `{"error":{"code":503}}`, want: streamChunk{failed: true, overloaded: true}},
		{text: `{"error":"no"}`, want: streamChunk{failed: true}},
		{text: `{"a":[{"b":[[],{}]},"\\\"",-1.5e+3,true,false,null],"choices":[{"text":"a"}]}`, want: streamChunk{text: true}},

		{text: ``, bad: true},
		{text: `null`, bad: true},
		{text: `[]`, bad: true},
		{text: `{`, bad: true},
		{text: `{}{}`, bad: true},
		{text: `{"a"}`, bad: true},
		{text: `{"a":}`, bad: true},
		{text: `{"a":1,}`, bad: true},
		{text: `{"a":"b}`, bad: true},
		{text: `{"a":"b\`, bad: true},
		{text: `{"a":[1}`, bad: true},
		{text: `{"choices":[{"text":"a"]}`, bad: true},
		{text: `{"a":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + `}`, bad: true},
	} {
		got, err := parseChunk([]byte(tt.text))
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%s: %+v, %v; want %+v, bad %v", tt.text, got, err, tt.want, tt.bad)
		}
	}
}

// naiveChunk is parseChunk by encoding/json.
func naiveChunk(data []byte) (out streamChunk, ok bool) {
	var top map[string]json.RawMessage
	if json.Unmarshal(data, &top) != nil || top == nil {
		return out, false
	}
	list := func(raw json.RawMessage) (items []json.RawMessage) { _ = json.Unmarshal(raw, &items); return items }
	object := func(raw json.RawMessage) (m map[string]json.RawMessage) { _ = json.Unmarshal(raw, &m); return m }
	filled := func(raw json.RawMessage) bool {
		raw = bytes.TrimSpace(raw)
		if len(raw) == 0 {
			return false
		}
		switch raw[0] {
		case '"':
			return len(raw) > 2
		case '[':
			return len(list(raw)) > 0
		case '{':
			return len(object(raw)) > 0
		}
		return false
	}
	count := func(raw json.RawMessage) (int, bool) {
		n, ok := parseNumber(bytes.TrimSpace(raw))
		return int(min(n, maxCount)), ok
	}
	for _, item := range list(top["choices"]) {
		c := object(item)
		out.text = out.text || filled(c["text"])
		out.finished = out.finished || bytes.HasPrefix(bytes.TrimSpace(c["finish_reason"]), []byte{'"'})
		for _, name := range []string{"delta", "message"} {
			d := object(c[name])
			for _, name := range []string{"content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"} {
				out.text = out.text || filled(d[name])
			}
		}
	}
	u := object(top["usage"])
	var prompt, completion bool
	out.prompt, prompt = count(u["prompt_tokens"])
	out.output, completion = count(u["completion_tokens"])
	out.reported = prompt && completion
	out.cache, out.reportedCached = count(object(u["prompt_tokens_details"])["cached_tokens"])
	if raw := bytes.TrimSpace(top["error"]); len(raw) > 0 && raw[0] != 'n' {
		out.failed = true
		for _, name := range []string{"type", "code", "status"} {
			word := strings.Trim(string(object(raw)[name]), " \t\r\n\"")
			out.overloaded = out.overloaded || word == "503" || word == "529" || strings.Contains(word, "overloaded") || strings.Contains(word, "unavailable")
		}
	}
	return out, true
}

// twice reports whether an object anywhere in data has a key twice, or one that is
// written with an escape: there the two readers may differ.
func twice(data []byte) bool {
	if bytes.IndexByte(data, '\\') >= 0 {
		return true
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var walk func() bool
	walk = func() bool {
		tok, err := dec.Token()
		if err != nil {
			return false
		}
		delim, _ := tok.(json.Delim)
		seen := map[any]bool{}
		for delim != 0 && dec.More() {
			if delim == '{' {
				key, err := dec.Token()
				if err != nil || seen[key] {
					return true
				}
				seen[key] = true
			}
			if walk() {
				return true
			}
		}
		if delim != 0 {
			_, _ = dec.Token()
		}
		return false
	}
	return walk()
}

// FuzzChunk: of an object of JSON it has what encoding/json finds there.
func FuzzChunk(f *testing.F) {
	for _, s := range []string{
		`{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":null}`,
		`{"choices":[{"delta":{"role":"assistant","content":"x","tool_calls":[{}]}}]}`,
		`{"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`,
		`{"error":{"type":"overloaded_error","code":529}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseChunk(data)
		want, ok := naiveChunk(data)
		if !ok || bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) >= deep || twice(data) {
			return // it may be lax about what is no JSON
		}
		if err != nil || got != want {
			t.Fatalf("%q: %+v, %v; want %+v", data, got, err, want)
		}
	})
}
