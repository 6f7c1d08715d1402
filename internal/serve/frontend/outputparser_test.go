package frontend

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

const toolsJSON = `[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}},` +
	`{"type":"function","function":{"name":"time","parameters":{"type":"object","properties":{}}}}]`

// said is a client's view of one choice.
type said struct {
	Content   any // nil, or a string
	Reasoning string
	Calls     []string // name and arguments
	Finish    string
}

// whole reads the first choice of a whole answer.
func whole(t *testing.T, body string) (out said, usage map[string]any) {
	t.Helper()
	var a struct {
		Choices []struct {
			Message struct {
				Content   any    `json:"content"`
				Reasoning string `json:"reasoning_content"`
				Calls     []struct {
					ID       string
					Type     string
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
			Finish string `json:"finish_reason"`
		}
		Usage map[string]any
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Choices) == 0 {
		t.Fatalf("%v in %s", err, body)
	}
	m := a.Choices[0].Message
	out = said{Content: m.Content, Reasoning: m.Reasoning, Finish: a.Choices[0].Finish}
	ids := map[string]bool{}
	for _, c := range m.Calls {
		if c.ID == "" || ids[c.ID] || c.Type != "function" {
			t.Errorf("call %+v in %s", c, body)
		}
		ids[c.ID] = true
		out.Calls = append(out.Calls, c.Function.Name+" "+c.Function.Arguments)
	}
	return out, a.Usage
}

// streamed joins the chunks of the first choice of a stream.
func streamed(t *testing.T, body string) (out said) {
	t.Helper()
	var text strings.Builder
	var calls [][2]string
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		data, _ := strings.CutPrefix(event, "data: ")
		if data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct {
				Index int
				Delta struct {
					Content   string
					Reasoning string `json:"reasoning_content"`
					Calls     []struct {
						Index    int
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("%v in %s", err, event)
		}
		for _, c := range chunk.Choices {
			if c.Index != 0 {
				continue
			}
			text.WriteString(c.Delta.Content)
			out.Reasoning += c.Delta.Reasoning
			for _, call := range c.Delta.Calls {
				if call.ID != "" {
					calls = append(calls, [2]string{call.Function.Name, ""})
				}
				calls[call.Index][1] += call.Function.Arguments
			}
			if c.Finish != "" {
				out.Finish = c.Finish
			}
		}
	}
	for _, c := range calls {
		out.Calls = append(out.Calls, c[0]+" "+c[1])
	}
	if out.Content = text.String(); text.Len() == 0 && len(calls) > 0 {
		out.Content = nil
	}
	return out
}

// TestSpeech: model output is split into content, reasoning and calls, equally in a stream and in a
// whole answer, however the worker splits it, and also when a worker dies in the middle.
func TestSpeech(t *testing.T) {
	const call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"
	const tools = `,"tools":` + toolsJSON
	for _, tt := range []struct {
		name, tools, reasoning string // of the card
		says, with             string
		want                   said
	}{
		{"plain", "none", "none", "hello", ``, said{Content: "hello", Finish: "stop"}},
		{"reasoning", "", "qwen3", "<think>hm</think>\nhi", ``, said{Content: "hi", Reasoning: "hm", Finish: "stop"}},
		{"hidden reasoning", "", "qwen3", "<think>hm</think>hi", `,"include_reasoning":false`, said{Content: "hi", Finish: "stop"}},
		{"forced reasoning", "", "deepseek_r1", "hm</think>hi", ``, said{Content: "hi", Reasoning: "hm", Finish: "stop"}},
		{"cut in reasoning", "", "qwen3", "<think>hm and on", `,"max_tokens":10`, said{Content: "", Reasoning: "hm ", Finish: "length"}},
		{"no format asked for", "hermes", "", call, ``, said{Content: call, Finish: "stop"}},
		{"call", "hermes", "", call, tools, said{Calls: []string{`weather {"city": "Oslo"}`}, Finish: "tool_calls"}},
		{"text and two calls", "hermes", "", "ok " + call + "\n" + call, tools, said{Content: "ok", Calls: []string{`weather {"city": "Oslo"}`, `weather {"city": "Oslo"}`}, Finish: "tool_calls"}},
		{"one call only", "hermes", "", "ok " + call + "\n" + call + " more", tools + `,"parallel_tool_calls":false`, said{Content: "ok", Calls: []string{`weather {"city": "Oslo"}`}, Finish: "tool_calls"}},
		{"one call only, the next one held", "hermes", "", call + call, tools + `,"parallel_tool_calls":false,"stop":"` + strings.NewReplacer("\n", `\n`, `"`, `\"`).Replace("}\n</tool_call>"+call) + ` more"`, said{Calls: []string{`weather {"city": "Oslo"}`}, Finish: "tool_calls"}},
		{"none", "hermes", "", "hi", tools + `,"tool_choice":"none"`, said{Content: "hi", Finish: "stop"}},
		{"reasoning and call", "hermes", "qwen3", "<think>hm</think>" + call, tools, said{Reasoning: "hm", Calls: []string{`weather {"city": "Oslo"}`}, Finish: "tool_calls"}},
		{"cut in a call", "hermes", "", call, tools + `,"max_tokens":56`, said{Calls: []string{`weather {"city": "O`}, Finish: "length"}},
		{"stop string in a call", "hermes", "", call, tools + `,"stop":"Os"`, said{Calls: []string{`weather {"city": "`}, Finish: "stop"}},
		{"required", "hermes", "qwen3", `[{"name":"weather","arguments":{"city":"Oslo"}},{"name":"time","arguments":{}}]`, tools + `,"tool_choice":"required"`, said{Calls: []string{`weather {"city":"Oslo"}`, `time {}`}, Finish: "tool_calls"}},
		{"named", "", "", `{"name":"time","arguments":{}}`, tools + `,"tool_choice":{"type":"function","function":{"name":"time"}}`, said{Calls: []string{`time {}`}, Finish: "tool_calls"}},
		{"format", "hermes", "qwen3", `{"name":"<think>"}`, `,"response_format":{"type":"json_object"}`, said{Content: `{"name":"<think>"}`, Finish: "stop"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				card := func(c *engine.Card) {
					c.ToolParser, c.ReasoningParser, c.StructuredOutput, c.ContextLength = tt.tools, tt.reasoning, true, 4096
				}
				dying := constant(tt.says)
				w.worker(7, dying, card)
				w.worker(8, constant(tt.says), card)
				body := `{"model":"bytes","messages":[{"role":"user","content":"x"}]` + tt.with
				for _, dying.batch = range []int{1, 5, 1000} {
					for _, dying.dieAfter = range []int{0, 1, 7} {
						a := w.post("/v1/chat/completions", body+`}`)
						if a.status != 200 {
							t.Fatal(a.status, a.body)
						}
						got, _ := whole(t, a.body)
						if diff := cmp.Diff(tt.want, got); diff != "" {
							t.Errorf("batch %d, dies after %d (-want +got)\n%s", dying.batch, dying.dieAfter, diff)
						}
						a = w.post("/v1/chat/completions", body+`,"stream":true}`)
						if diff := cmp.Diff(tt.want, streamed(t, a.body)); diff != "" {
							t.Errorf("streamed, batch %d, dies after %d (-want +got)\n%s", dying.batch, dying.dieAfter, diff)
						}
						synctest.Wait() // for the worker whose answer was not read to its end
					}
				}
			})
		})
	}
}

// TestForcedContent: a request may ask for content in an answer which is all reasoning. A whole answer then has
// no reasoning.
func TestForcedContent(t *testing.T) {
	const force = `,"chat_template_kwargs":{"force_nonempty_content":true}`
	const call = `<tool_call>{"name": "time", "arguments": {}}</tool_call>`
	for _, tt := range []struct {
		name, says, with string
		whole, streamed  said
	}{
		{
			"cut in reasoning", "Four it is", force + `,"max_tokens":4`,
			said{Content: "Four", Finish: "length"},
			said{Content: "Four", Reasoning: "Four", Finish: "length"},
		},
		{"no content", "Four</think>\n", force, said{Content: "Four", Finish: "stop"}, said{Content: "Four", Reasoning: "Four", Finish: "stop"}},
		{"hidden", "Four", force + `,"include_reasoning":false`, said{Content: "Four", Finish: "stop"}, said{Content: "Four", Finish: "stop"}},
		{"log-probabilities", "Four", force + `,"logprobs":true`, said{Content: "Four", Finish: "stop"}, said{Content: "Four", Reasoning: "Four", Finish: "stop"}},
		{"content", "Hm.</think>Four", force, said{Content: "Four", Reasoning: "Hm.", Finish: "stop"}, said{Content: "Four", Reasoning: "Hm.", Finish: "stop"}},
		{
			"call", "Hm.</think>" + call, force + `,"tools":` + toolsJSON,
			said{Reasoning: "Hm.", Calls: []string{"time {}"}, Finish: "tool_calls"},
			said{Reasoning: "Hm.", Calls: []string{"time {}"}, Finish: "tool_calls"},
		},
		{"not asked for", "Four", ``, said{Content: "", Reasoning: "Four", Finish: "stop"}, said{Content: "", Reasoning: "Four", Finish: "stop"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				s := constant(tt.says)
				w.worker(7, s, func(c *engine.Card) { c.ToolParser, c.ReasoningParser, c.ContextLength = "hermes", "nemotron_v3", 4096 })
				body := `{"model":"bytes","messages":[{"role":"user","content":"x"}]` + tt.with
				for _, s.batch = range []int{1, 1000} {
					synctest.Wait() // the worker may still be ending the call before
					got, _ := whole(t, w.post("/v1/chat/completions", body+`}`).body)
					if diff := cmp.Diff(tt.whole, got); diff != "" {
						t.Errorf("batch %d (-want +got)\n%s", s.batch, diff)
					}
					if diff := cmp.Diff(tt.streamed, streamed(t, w.post("/v1/chat/completions", body+`,"stream":true}`).body)); diff != "" {
						t.Errorf("streamed, batch %d (-want +got)\n%s", s.batch, diff)
					}
				}
			})
		})
	}
}

// TestStopTokenIsMarkup: a stop token has no text, but if it is the markup that ends a call, the call
// has ended.
func TestStopTokenIsMarkup(t *testing.T) {
	for says, want := range map[string]said{
		`<|channel|>commentary to=functions.weather<|message|>{"city": "Oslo"}`: {Calls: []string{`weather {"city": "Oslo"}`}, Finish: "tool_calls"},
		`<|channel|>commentary to=functions.time<|message|>`:                    {Calls: []string{`time {}`}, Finish: "tool_calls"},
		`<|channel|>final<|message|>hi`:                                         {Content: "hi", Finish: "stop"},
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			s := &script{tokens: append(encodeBytes(says), byteCall)}
			w.worker(7, s, func(c *engine.Card) { c.ToolParser, c.ReasoningParser, c.ContextLength = "harmony", "gpt_oss", 4096 })
			body := `{"model":"bytes","messages":[{"role":"user","content":"x"}],"stop_token_ids":[258],"tools":` + toolsJSON
			for _, batch := range []int{1, 1000} {
				synctest.Wait() // the worker may still be ending the call before
				s.batch = batch
				got, _ := whole(t, w.post("/v1/chat/completions", body+`}`).body)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got)\n%s", says, diff)
				}
				if diff := cmp.Diff(want, streamed(t, w.post("/v1/chat/completions", body+`,"stream":true}`).body)); diff != "" {
					t.Errorf("streamed %s (-want +got)\n%s", says, diff)
				}
			}
		})
	}
}

// TestCallInsideReasoning: a call ends reasoning that was never closed if its marker is the token,
// however the worker splits its tokens and whatever stop strings hold back. A marker that the model
// spells out is text.
func TestCallInsideReasoning(t *testing.T) {
	const object = `{"name": "time", "arguments": {}}`
	for _, tt := range []struct {
		name, with string
		says       []kv.Token
		want       said
	}{
		{
			"token", "", slices.Concat(encodeBytes("<think>hm "), []kv.Token{byteTool}, encodeBytes(object+"</tool_call>")),
			said{Reasoning: "hm", Calls: []string{"time {}"}, Finish: "tool_calls"},
		},
		{
			"token that may begin a stop string", `,"stop":["<tool_call>!","m <tool_c."]`,
			slices.Concat(encodeBytes("<think>hm <"), []kv.Token{byteTool}, encodeBytes(object+"</tool_call>")),
			said{Reasoning: "hm <", Calls: []string{"time {}"}, Finish: "tool_calls"},
		},
		{
			"spelled", "", encodeBytes("<think>hm <tool_call>" + object + "</tool_call></think>hi"),
			said{Reasoning: "hm <tool_call>" + object + "</tool_call>", Content: "hi", Finish: "stop"},
		},
		{
			"unknown function", "", slices.Concat(encodeBytes("<think>hm "), []kv.Token{byteTool}, encodeBytes(`{"name": "f"}</think>hi`)),
			said{Reasoning: `hm <tool_call>{"name": "f"}`, Content: "hi", Finish: "stop"},
		},
		{
			"spelled behind reasoning", "", encodeBytes("<think>hm</think><tool_call>" + object + "</tool_call>"),
			said{Reasoning: "hm", Calls: []string{"time {}"}, Finish: "tool_calls"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				s := &script{tokens: append(tt.says, byteEOS)}
				w.worker(7, s, func(c *engine.Card) { c.ToolParser, c.ReasoningParser, c.ContextLength = "hermes", "qwen3", 4096 })
				body := `{"model":"bytes","messages":[{"role":"user","content":"x"}],"tools":` + toolsJSON + tt.with
				for _, batch := range []int{1, 3, 1000} {
					synctest.Wait() // the worker may still be ending the call before
					s.batch = batch
					got, _ := whole(t, w.post("/v1/chat/completions", body+`}`).body)
					if diff := cmp.Diff(tt.want, got); diff != "" {
						t.Errorf("batch %d (-want +got)\n%s", s.batch, diff)
					}
					if diff := cmp.Diff(tt.want, streamed(t, w.post("/v1/chat/completions", body+`,"stream":true}`).body)); diff != "" {
						t.Errorf("streamed, batch %d (-want +got)\n%s", s.batch, diff)
					}
				}
			})
		})
	}
}

// TestUnsureFormat: if a model's markers match several formats none is chosen, and the log says once
// what to do, unless the card says that there is none.
func TestUnsureFormat(t *testing.T) {
	for parser, logged := range map[string]int{"": 1, "none": 0, "hermes": 0} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			card := func(c *engine.Card) { c.ToolParser, c.ContextLength = parser, 4096 }
			w.worker(7, constant("hi"), card)
			w.worker(8, constant("hi"), card)
			a := w.post("/v1/chat/completions", `{"model":"bytes","messages":[{"role":"user","content":"x"}],"tools":`+toolsJSON+`}`)
			if refused := a.status == 400 && strings.Contains(a.body, "--tool-call-parser"); refused != (parser != "hermes") {
				t.Errorf("%q: %d %s", parser, a.status, a.body)
			}
			log := w.log.String()
			if n := strings.Count(log, "--tool-call-parser NAME"); n != logged || logged > 0 && !strings.Contains(log, "<tool_call>, which is a marker of hermes, glm45") {
				t.Errorf("%q: logged %d times, want %d: %s", parser, n, logged, log)
			}
		})
	}
}

// TestSpecialTokensInSpeech: special tokens which are not markup are left out of a parsed answer as of
// any other, unless the client wants them.
func TestSpecialTokensInSpeech(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		says := append(encodeBytes("<think>a"), byteTurn)
		says = append(append(says, encodeBytes("</think>b")...), byteTurn, 'c', byteEOS)
		w.worker(7, &script{tokens: says}, func(c *engine.Card) { c.ReasoningParser = "qwen3" })
		for with, want := range map[string]said{
			``:                             {Content: "bc", Reasoning: "a", Finish: "stop"},
			`,"skip_special_tokens":false`: {Content: "b<|turn|>c", Reasoning: "a<|turn|>", Finish: "stop"},
		} {
			got, _ := whole(t, w.post("/v1/chat/completions", `{"model":"bytes","messages":[{"role":"user","content":"x"}]`+with+`}`).body)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", with, diff)
			}
		}
	})
}

// TestContinuedSpeech: an answer that continues the assistant's last message starts in that message's
// state, whatever the model's answers usually begin with.
func TestContinuedSpeech(t *testing.T) {
	for _, tt := range []struct {
		name, tools, reasoning string // of the card
		final, says, with      string
		want                   said
	}{
		{"content", "", "deepseek_r1", "It is", " warm", ``, said{Content: " warm", Finish: "stop"}},
		{"reasoning", "", "deepseek_r1", "<think>Hm", "m</think>warm", ``, said{Content: "warm", Reasoning: "m", Finish: "stop"}},
		{"optional reasoning", "", "qwen3", "<think>Hm", "m</think>warm", ``, said{Content: "warm", Reasoning: "m", Finish: "stop"}},
		{"content behind reasoning", "", "deepseek_r1", "<think>Hm</think>It", " is", ``, said{Content: " is", Finish: "stop"}},
		{"bare call", "llama3_json", "none", "In JSON: ", `{"name": "time", "parameters": {}}`, `,"tools":` + toolsJSON, said{Content: `{"name": "time", "parameters": {}}`, Finish: "stop"}},
		{"marked call", "hermes", "none", "I ask. ", `<tool_call>{"name": "time", "arguments": {}}</tool_call>`, `,"tools":` + toolsJSON, said{Calls: []string{"time {}"}, Finish: "tool_calls"}},
		{"required", "hermes", "none", "I ask. ", `[{"name":"time","arguments":{}}]`, `,"tool_choice":"required","tools":` + toolsJSON, said{Calls: []string{"time {}"}, Finish: "tool_calls"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				w.worker(7, constant(tt.says), func(c *engine.Card) {
					c.ToolParser, c.ReasoningParser, c.StructuredOutput, c.ContextLength = tt.tools, tt.reasoning, true, 4096
				})
				a := w.post("/v1/chat/completions", fmt.Sprintf(`{"model":"bytes","continue_final_message":true,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":%q}]%s}`, tt.final, tt.with))
				if a.status != 200 {
					t.Fatal(a.status, a.body)
				}
				got, _ := whole(t, a.body)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		})
	}
}

// TestReasoningTokens: usage counts the reasoning tokens, including the opening marker.
func TestReasoningTokens(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(7, constant("<think>abc</think>de"), func(c *engine.Card) { c.ReasoningParser = "qwen3" })
		_, usage := whole(t, w.post("/v1/chat/completions", `{"model":"bytes","messages":[{"role":"user","content":"x"}]}`).body)
		got := usage["completion_tokens_details"].(map[string]any)["reasoning_tokens"]
		// A token is a byte here: the one that completes the opening marker, three of reasoning, and
		// all of the closing marker but the one that completes it.
		if want := float64(len(">abc</think")); got != want {
			t.Errorf("%v reasoning tokens, want %v", got, want)
		}
	})
}

// TestSpeechLogprobs: markup removes no token's log-probability.
func TestSpeechLogprobs(t *testing.T) {
	const says = "<think>a</think>b<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>"
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(7, constant(says), func(c *engine.Card) { c.ToolParser, c.ReasoningParser = "hermes", "qwen3" })
		body := `{"model":"bytes","messages":[{"role":"user","content":"x"}],"logprobs":true,"tools":` + toolsJSON + `}`
		var a struct {
			Choices []struct {
				Logprobs struct{ Content []struct{ Token string } }
			}
		}
		text := w.post("/v1/chat/completions", body).body
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, lp := range a.Choices[0].Logprobs.Content {
			all.WriteString(lp.Token)
		}
		if all.String() != says {
			t.Errorf("log-probabilities of %q, want those of %q", all.String(), says)
		}
	})
}

// TestHiddenLogprobs: hidden reasoning does not appear in log-probabilities either.
func TestHiddenLogprobs(t *testing.T) {
	for says, want := range map[string]string{
		"<think>secret</think>hi": ">hi", // the token that ends the reasoning is not part of it
		"<think>secret":           "",
	} {
		for _, stop := range []string{"", "ret", "ets"} {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				s := constant(says)
				w.worker(7, s, func(c *engine.Card) { c.ReasoningParser = "qwen3" })
				body := `{"model":"bytes","messages":[{"role":"user","content":"x"}],"logprobs":true,"include_reasoning":false`
				if stop != "" {
					body += `,"stop":"` + stop + `"`
				}
				for _, batch := range []int{1, 1000} {
					synctest.Wait() // the worker may still be ending the call before
					s.batch = batch
					var a struct {
						Choices []struct {
							Logprobs struct{ Content []struct{ Token string } }
						}
					}
					text := w.post("/v1/chat/completions", body+"}").body
					if err := json.Unmarshal([]byte(text), &a); err != nil {
						t.Fatal(err)
					}
					var all strings.Builder
					for _, lp := range a.Choices[0].Logprobs.Content {
						all.WriteString(lp.Token)
					}
					want := want
					if stop == "ret" {
						want = ""
					}
					if got := all.String(); strings.TrimPrefix(got, "<think") != want {
						t.Errorf("%s, stop %q: log-probabilities of %q, want of %q", says, stop, got, want)
					}
				}
			})
		}
	}
}

// TestGuides: an answer that must be JSON goes to the engine as a schema; a schema that no engine
// supports is refused by field name, and a worker without support is not chosen.
func TestGuides(t *testing.T) {
	const schema = `{"type":"object","properties":{"b":{"$ref":"#/$defs/d"},"a":{"const":1}},"$defs":{"d":{"enum":["#/x"]}}}`
	const object = `{"type":"object","properties":{"name":{"const":%q},"arguments":%s},"required":["name","arguments"],"additionalProperties":false}`
	tool := func(name string) string {
		return `{"type":"function","function":{"name":"` + name + `","parameters":` + schema + `}}`
	}
	moved := func(root string) string {
		return strings.Replace(schema, "#/$defs/d", root+"/properties/arguments/$defs/d", 1)
	}
	one := fmt.Sprintf(object, "f", moved("#"))
	untyped := func(parameters string) string {
		return `"tools":[{"type":"function","function":{"name":"f","parameters":` + parameters + `}}],"tool_choice":{"type":"function","function":{"name":"f"}}`
	}
	for _, tt := range []struct{ name, with, want string }{
		{"free", ``, ``},
		{"object", `"response_format":{"type":"json_object"}`, `{"type":"object"}`},
		{"schema", `"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":` + schema + `}}`, schema},
		{"named", `"tools":[` + tool("g") + `,` + tool("f") + `],"tool_choice":{"type":"function","function":{"name":"f"}}`, one},
		{"any arguments", untyped(`{}`), fmt.Sprintf(object, "f", `{"type":"object"}`)},
		{"untyped arguments", untyped(`{ "properties":{"a":{}}}`), fmt.Sprintf(object, "f", `{"type":"object", "properties":{"a":{}}}`)},
		{"arguments by reference", untyped(`{"$ref":"#/$defs/a","$defs":{"a":{}}}`), fmt.Sprintf(object, "f", `{"$ref":"#/properties/arguments/$defs/a","$defs":{"a":{}}}`)},
		{"one required", `"tools":[` + tool("f") + `],"tool_choice":"required","parallel_tool_calls":false`, one},
		{"required", `"tools":[` + tool("f") + `],"tool_choice":"required"`, `{"type":"array","minItems":1,"items":` + fmt.Sprintf(object, "f", moved("#/items")) + `}`},
		{
			"one of two", `"tools":[` + tool("f") + `,{"type":"function","function":{"name":"g"}}],"tool_choice":"required","parallel_tool_calls":false`,
			`{"anyOf":[` + fmt.Sprintf(object, "f", moved("#/anyOf/0")) + `,` + fmt.Sprintf(object, "g", `{"type":"object"}`) + `]}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				able, unable := constant("{}"), constant("{}")
				w.worker(7, unable, func(c *engine.Card) { c.ContextLength = 1 << 20 })
				body := `{"model":"bytes","messages":[{"role":"user","content":"x"}]`
				if tt.with != "" {
					body += "," + tt.with
				}
				if a := w.post("/v1/chat/completions", body+"}"); tt.want != "" && (a.status != 400 || !strings.Contains(a.body, "cannot keep to a schema")) {
					t.Errorf("without a guided engine: %d %s", a.status, a.body)
				}
				w.worker(8, able, func(c *engine.Card) { c.StructuredOutput, c.ContextLength = true, 1<<20 })
				if a := w.post("/v1/chat/completions", body+"}"); a.status != 200 {
					t.Fatal(a.status, a.body)
				}
				var got string
				for _, r := range able.seen() {
					if r.OutputSchema != nil {
						got = string(r.OutputSchema.Schema)
					}
				}
				if got != tt.want {
					t.Errorf("schema\n%s, want\n%s", got, tt.want)
				}
				for _, r := range unable.seen() {
					if r.OutputSchema != nil {
						t.Error("a worker that keeps to no schema was given one")
					}
				}
			})
		})
	}
}

// TestGuideRefusals: an engine's refusal of a schema names the field that asked for it.
func TestGuideRefusals(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := constant("{}")
		s.refuse = fault.InvalidParam(engine.SchemaParam, "multipleOf is not supported")
		w.worker(7, s, func(c *engine.Card) { c.StructuredOutput, c.ContextLength = true, 1<<20 })
		for with, param := range map[string]string{
			`"response_format":{"type":"json_object"}`:      "response_format",
			`"guided_json":{"type":"object"}`:               "guided_json",
			`"tool_choice":"required","tools":` + toolsJSON: "tool_choice",
		} {
			a := w.post("/v1/chat/completions", `{"model":"bytes","messages":[{"role":"user","content":"x"}],`+with+`}`)
			if a.status != 400 || !strings.Contains(a.body, `multipleOf is not supported","type":"invalid_request_error","param":"`+param+`"`) {
				t.Errorf("%s: %d %s", param, a.status, a.body)
			}
		}
	})
}

// TestRebased: references move with their schema; data which only looks like one stays.
func TestRebased(t *testing.T) {
	for schema, want := range map[string]string{
		`{"$ref":"#"}`: `{"$ref":"#/r"}`,
		`{ "anyOf" : [ {"$ref": "#/$defs/a"} , true ], "$defs":{"a":{"items":{"$ref":"#/$defs/a"}}} }`:                     `{ "anyOf" : [ {"$ref": "#/r/$defs/a"} , true ], "$defs":{"a":{"items":{"$ref":"#/r/$defs/a"}}} }`,
		`{"const":{"$ref":"#/x"},"enum":[{"$ref":"#/x"},["$ref","#/x"]],"default":{"a":{"$ref":"#/x"}}}`:                   `{"const":{"$ref":"#/x"},"enum":[{"$ref":"#/x"},["$ref","#/x"]],"default":{"a":{"$ref":"#/x"}}}`,
		`{"properties":{"$ref":{"type":"string"},"const":{"$ref":"#/x"},"":{"$ref":"#/y"},"enum":{"items":{"$ref":"#"}}}}`: `{"properties":{"$ref":{"type":"string"},"const":{"$ref":"#/r/x"},"":{"$ref":"#/r/y"},"enum":{"items":{"$ref":"#/r"}}}}`,
		`{"$ref":"other#/x","title":"#/x","description":"$ref"}`:                                                           `{"$ref":"other#/x","title":"#/x","description":"$ref"}`,
		`true`: `true`,
	} {
		if got := string(rebaseRefs([]byte(schema), "#/r")); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", schema, got, want)
		}
	}
}
