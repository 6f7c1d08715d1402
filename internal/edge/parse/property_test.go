package parse

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"penstock/internal/fixturetest"
)

var testFunctions = []Function{{
	Name:       "f",
	Parameters: []byte(`{"properties": {"s": {"type": "string"}, "n": {"type": "number"}, "o": {"type": "object"}}}`),
}, {Name: "g"}}

// markup is the material of random texts: every marker, and pieces of values.
func markup() []string {
	words := []string{
		" ", "\n", "text", "日本", "🎉", "f", "g", "(", ")", "{", "}", "[", "]", "'", `"`, `\`, ",", ";", ":", "=", ">", "<", "1", "True",
		`{"name": "f", "arguments": {"s": "x"}}`, `"name"`, `"arguments"`, `{"s": 1}`, "f(s='a')", "call:f{s:1}", "function", "```json\n",
		"to=functions.f ", `"f">`, "f>", "s>", `"s">`, "assistant", "analysis", "final", "functions.f:0", `\u00`, `\ud83c`,
	}
	for _, f := range formats {
		words = append(append(words, f.open...), f.drop...)
	}
	for _, s := range styles {
		words = append(append(words, s.open...), s.end...)
	}
	for _, s := range []markerSet{harmonyBetween, harmonyInHeader} {
		for _, l := range s.literals {
			words = append(words, l.text)
		}
	}
	for _, f := range []xmlForm{qwenCoder, seedOSS, miMo, miniMax, glm, dsml, dsmlV4, dsmlV41} {
		words = append(words, f.sectionEnd, f.call, f.callEnd, f.param, f.valueEnd, f.keyEnd, f.valueBegin)
	}
	words = append(words, tagPrefix, tagPrefix+"</tool_call>", tagPrefix+`<invoke name="f">`, tagPrefix+"</invoke>", tagPrefix+"<s>",
		tagPrefix+"</s>", tagPrefix+"<o>", tagPrefix+"</o>", tagPrefix+"<", "thought\n", "<answer>", "</answer>", "</function_calls>")
	return append(words, "</tool_call>", "</tool_calls>", "</TOOLCALL>", "[ARGS]", "[CALL_ID]", "<escape>", `<|"|>`, "<end_function_call>", "<tool_call|>",
		"<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
}

// allConfigs returns every format with every style.
func allConfigs() []config {
	var cs []config
	for _, f := range append(Formats(), "") {
		for _, s := range append(Styles(), "") {
			cfg := config{Config: Config{Tools: f, Reasoning: s, Functions: testFunctions}, Seed: "s"}
			if _, err := newParser(cfg); err == nil { // bare lists and [THINK] exclude each other
				cs = append(cs, cfg)
			}
		}
	}
	return cs
}

// TestRandomMarkup parses random sequences of markers in random pieces.
func TestRandomMarkup(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	words := markup()
	for range 30 {
		for _, cfg := range allConfigs() {
			var b strings.Builder
			for range rng.IntN(30) {
				b.WriteString(words[rng.IntN(len(words))])
			}
			text := b.String()
			whole, err := Whole(cfg, []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			checkFallbacks(t, cfg, text, whole)
			var cuts []int
			for i := range text {
				if rng.IntN(4) == 0 {
					cuts = append(cuts, i)
				}
			}
			if diff := cmp.Diff(whole, inPieces(t, cfg, text, cuts...)); diff != "" {
				t.Fatalf("seed %d: %s/%s of %q cut at %v: %s", seed, cfg.Tools, cfg.Reasoning, text, cuts, diff)
			}
		}
	}
}

// checkFallbacks checks the answer of text with each fallback against that without.
func checkFallbacks(t *testing.T, cfg config, text string, whole Answer) {
	t.Helper()
	repeated := whole
	if whole.Content == "" && len(whole.Calls) == 0 && cfg.Start != StartAmid {
		repeated.Content = whole.Reasoning
	}
	moved := repeated
	if whole.Content != repeated.Content {
		moved.Reasoning = ""
	}
	for fallback, want := range map[ContentFallback]Answer{RepeatReasoning: repeated, MoveReasoning: moved} {
		cfg.Fallback = fallback
		if diff := cmp.Diff(want, inPieces(t, cfg, text, len(text)/2)); diff != "" {
			t.Fatalf("%s/%s of %q with fallback %d: %s", cfg.Tools, cfg.Reasoning, text, fallback, diff)
		}
	}
}

// naive implements the rule of tags without a parser: reasoning up to the end mark, then calls found by a
// regular expression.
func naive(text string) (a Answer) {
	if rest, ok := strings.CutPrefix(strings.TrimSpace(text), "<think>"); ok {
		text = rest
		a.Reasoning, text, _ = strings.Cut(text, "</think>")
		a.Reasoning, text = strings.TrimSpace(a.Reasoning), strings.TrimLeft(text, " \n")
	}
	before, rest, called := strings.Cut(text, "<tool_call>")
	if a.Content = before; called {
		a.Content = strings.TrimRight(before, " \n")
	}
	for called {
		var object, after string
		object, after, _ = strings.Cut(rest, "</tool_call>")
		var c struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if err := json.Unmarshal([]byte(object), &c); err != nil {
			panic(err)
		}
		a.Calls = append(a.Calls, Call{Name: c.Name, Arguments: string(c.Arguments), Complete: true})
		_, rest, called = strings.Cut(after, "<tool_call>")
	}
	return a
}

// TestAgainstNaive compares answers in the most used format with a naive implementation which sees the whole
// text.
func TestAgainstNaive(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	words := []string{"a", "<", "b>", "\n", " ", "</", "日", "{", "}", "tool_call", "🎉", "think"}
	say := func(n int) string {
		var b strings.Builder
		for range rng.IntN(n) {
			b.WriteString(words[rng.IntN(len(words))])
		}
		return b.String()
	}
	for range 2000 {
		var b strings.Builder
		if rng.IntN(2) == 0 {
			fmt.Fprintf(&b, "<think>%s.</think>", say(20))
		}
		fmt.Fprintf(&b, "x%s.", say(20))
		for range rng.IntN(4) {
			args, err := json.Marshal(map[string]any{say(3): say(20), "n": rng.IntN(1000), "l": []any{say(5), nil, map[string]any{"k": 1.5}}})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "\n<tool_call>\n{\"name\": \"f\", \"arguments\": %s}\n</tool_call>\n", args)
		}
		text := b.String()
		got, err := Whole(config{Config: Config{Tools: "hermes", Reasoning: "qwen3"}}, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Calls {
			got.Calls[i].ID = ""
		}
		if diff := cmp.Diff(naive(text), got); diff != "" {
			t.Fatalf("seed %d: %q: %s", seed, text, diff)
		}
	}
}

// TestPlainTextIsKept: text without markup is unchanged in every format.
func TestPlainTextIsKept(t *testing.T) {
	const plain = "  Words, `code` <b>, a[0] | {x: 1};\n\n\n「日本」 🎉 functional </thin tool_call  \n"
	for _, cfg := range allConfigs() {
		if cfg.Start = StartClosed; cfg.Tools == "harmony" || cfg.Reasoning == "gpt_oss" {
			continue // treats white space before its first header as layout
		}
		if got := inPieces(t, cfg, plain, 3, 7, 60); got.Content != plain || got.Reasoning != "" || got.Calls != nil {
			t.Errorf("%s/%s: %+v", cfg.Tools, cfg.Reasoning, got)
		}
	}
}

// TestMarkersArePrefixFree checks the precondition of matchMarker.
func TestMarkersArePrefixFree(t *testing.T) {
	for _, cfg := range allConfigs() {
		p, err := newParser(cfg)
		if err != nil {
			t.Fatal(err)
		}
		sets := []*markerSet{p.markers, &p.start, &p.mid, &p.after, &p.think, &p.rethink, &p.section}
		if p.tool != nil {
			for _, s := range p.tool.markerSets() { // in addition to which the markers of reasoning count
				sets = append(sets, s, &markerSet{literals: slices.Concat(s.literals, p.think.literals)})
			}
		}
		for _, s := range sets {
			for i, a := range s.literals {
				for j, b := range s.literals {
					// nestedMachine reads the first tag of a section again as a tag.
					if i != j && a.text != b.text && b.text != tagPrefix && strings.HasPrefix(a.text, b.text) {
						t.Errorf("%s/%s: %q begins %q", cfg.Tools, cfg.Reasoning, b.text, a.text)
					}
				}
			}
		}
	}
}

// TestHoldsLittle: held text is emitted if it never proves to be a call.
func TestHoldsLittle(t *testing.T) {
	for _, f := range formats {
		for _, begin := range append(append([]string{"<|channel|>"}, f.open...), f.bare...) {
			for _, more := range []string{" ", "a", `{"arguments": {"x": `, `"`, "[", "<tool_"} {
				p, err := newParser(config{Config: Config{Tools: f.names[0]}})
				if err != nil {
					t.Fatal(err)
				}
				var events []Event
				piece := []byte(strings.Repeat(more, 1000))
				events = p.Push(events, []byte(begin))
				for range 3 * maxHeld / len(piece) {
					events = p.Push(events[:0], piece)
				}
				if n := len(p.heldMarkup) + len(p.held) + len(p.space) + len(p.spaceAfter); n > maxHeld+2*maxSpace {
					t.Fatalf("%s behind %q %q: holds %d bytes", f.names[0], begin, more, n)
				}
			}
		}
	}
}

// TestAllocations: streaming text allocates nothing.
func TestAllocations(t *testing.T) {
	for _, text := range []string{"some words, ", `{"a": "b"}, `} {
		p, err := newParser(config{Config: Config{Tools: "hermes", Reasoning: "qwen3"}})
		if err != nil {
			t.Fatal(err)
		}
		var events []Event
		if text[0] == '{' {
			events = p.Push(events, []byte(`<tool_call>{"name": "f", "arguments": [`))
		}
		piece := []byte(text)
		if n := testing.AllocsPerRun(100, func() { events = p.Push(events[:0], piece) }); n != 0 {
			t.Errorf("%q: %v allocations", text, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	fixturetest.AddCorpus(f)
	cs := allConfigs()
	words := markup()
	for i, w := range words {
		f.Add(uint16(i), uint16(i*7), w+words[(i*13)%len(words)])
	}
	f.Fuzz(func(t *testing.T, which, cut uint16, text string) {
		cfg := cs[int(which)%len(cs)]
		whole, err := Whole(cfg, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		checkFallbacks(t, cfg, text, whole)
		at := int(cut) % (len(text) + 1)
		if diff := cmp.Diff(whole, inPieces(t, cfg, text, at)); diff != "" {
			t.Fatalf("%s/%s cut at %d: %s", cfg.Tools, cfg.Reasoning, at, diff)
		}
		if utf8.ValidString(text) {
			for _, c := range whole.Calls {
				if !utf8.ValidString(c.Arguments) {
					t.Fatalf("%s: arguments %q", cfg.Tools, c.Arguments)
				}
			}
			if !utf8.ValidString(whole.Content + whole.Reasoning) {
				t.Fatalf("%s: content %q", cfg.Tools, whole.Content)
			}
		}
	})
}

// BenchmarkPush measures text in pieces of four bytes, as it comes from a model, and the same text whole.
func BenchmarkPush(b *testing.B) {
	call := []byte(`<tool_call>{"name": "f", "arguments": {"text": "` + strings.Repeat("some words, ", 100) + `"}}</tool_call>`)
	prose := []byte(strings.Repeat("Some words, and a line.\n", 50))
	for _, c := range []struct {
		name string
		text []byte
		step int
	}{{"prose", prose, 4}, {"prose-whole", prose, len(prose)}, {"call", call, 4}, {"call-whole", call, len(call)}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			var events []Event
			for b.Loop() {
				p, err := newParser(config{Config: Config{Tools: "hermes", Reasoning: "qwen3"}})
				if err != nil {
					b.Fatal(err)
				}
				for i := 0; i < len(c.text); i += c.step {
					events = p.Push(events[:0], c.text[i:min(i+c.step, len(c.text))])
				}
				events = p.Close(events[:0])
			}
		})
	}
}

// TestLongNames: a header which is longer than any name is not a call, and what follows can be one.
func TestLongNames(t *testing.T) {
	for format, header := range map[string]string{
		"mistral":     "[TOOL_CALLS]%s[ARGS]{}",
		"kimi_k2":     "<|tool_call_begin|>%s<|tool_call_argument_begin|>{}<|tool_call_end|>",
		"deepseek_v3": "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
		"harmony":     "<|channel|>commentary to=functions.%s<|message|>{}<|call|>",
		"qwen3_coder": "<tool_call><function=%s></function></tool_call>",
		"gemma":       "<start_function_call>call:%s{}<end_function_call>",
		"pythonic":    "<|python_start|>[%s()]<|python_end|>",
	} {
		text := fmt.Sprintf(header, strings.Repeat("n", 2*maxName+1))
		a, err := Whole(config{Config: Config{Tools: format}}, []byte(text+fmt.Sprintf(header, "f")))
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Calls) != 1 || a.Calls[0].Name != "f" {
			t.Errorf("%s: %d calls: %+v", format, len(a.Calls), a)
		}
	}
}

// TestStringsOfUnknownTypeStream: a value whose first character shows that it is a string is not held.
func TestStringsOfUnknownTypeStream(t *testing.T) {
	optional := Function{Name: "f", Parameters: []byte(`{"properties": {"o": {"type": ["string", "null", "boolean"]}, "n": {"type": "integer"}}}`)}
	for _, c := range []struct{ key, value, want string }{
		{"x", "Some words", `{"x":"Some words`},
		{"x", "\n  \"Quoted", `{"x":"  \"Quoted`},
		{"x", "{\"a\"", `{"x":`},
		{"x", "12", `{"x":`},
		{"x", "tr", `{"x":`},
		{"x", " ", `{"x":`},
		{"x", "1 apple", `{"x":`},
		{"o", "Some words", `{"o":"Some words`},
		{"o", "Tr", `{"o":`},
		{"o", "nul", `{"o":`},
		{"n", "words", `{"n":`},
	} {
		p, err := newParser(config{Config: Config{Tools: "qwen3_coder", Functions: []Function{optional}}})
		if err != nil {
			t.Fatal(err)
		}
		var f Fold
		f.Add(p.Push(nil, []byte("<tool_call><function=f><parameter="+c.key+">"+c.value)))
		if got := f.Answer().Calls[0].Arguments; got != c.want {
			t.Errorf("%s: %q: %s, want %s", c.key, c.value, got, c.want)
		}
	}
}

// TestGemmaEndsAnywhere: arguments which the end marker cuts off are complete and valid JSON.
func TestGemmaEndsAnywhere(t *testing.T) {
	const quote = `<|"|>`
	const call = `<|tool_call>call:f{s:<|"|>Köln } "x"<|"|>,"k":"R\u00fcd\"e",t:'''it's''',n:-1.5,o:{k:[1,{b:true,c:[]}],z:r'x'},l:(1,),e:'',x:New York}`
	for i := range call {
		inQuote := false
		for n := 1; n < len(quote); n++ {
			inQuote = inQuote || strings.HasSuffix(call[:i], quote[:n])
		}
		if i <= strings.Index(call, "{") || inQuote {
			continue
		}
		a, err := Whole(config{Config: Config{Tools: "gemma4", Functions: testFunctions}}, []byte(call[:i]+"<tool_call|> Bye"))
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Calls) != 1 || !a.Calls[0].Complete || !json.Valid([]byte(a.Calls[0].Arguments)) || a.Content != "Bye" {
			t.Errorf("%q: %+v", call[:i], a)
		}
	}
}
