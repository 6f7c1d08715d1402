package parse

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestDetect(t *testing.T) {
	vocabulary := func(tokens ...string) func(string) bool {
		return func(s string) bool {
			for _, t := range tokens {
				if s == t {
					return true
				}
			}
			return false
		}
	}
	for _, c := range []struct {
		model            Model
		tools, reasoning string
	}{
		{Model{}, "", ""},
		{Model{Name: "Qwen/Qwen2.5-7B-Instruct", Template: "…<tool_call>\n{…}</tool_call>"}, "hermes", ""},
		{Model{Name: "Qwen/Qwen3-8B", Template: "<tool_call> </think>"}, "hermes", "qwen3"},
		{Model{Name: "Qwen/Qwen3-8B", HasToken: vocabulary("<tool_call>", "<think>")}, "hermes", "qwen3"},
		{Model{Name: "Qwen3-Coder-30B", Template: "<tool_call>\n<function=f>\n<parameter=p>", HasToken: vocabulary("<think>")}, "qwen3_coder", ""},
		{Model{Name: "deepseek-ai/DeepSeek-R1", Template: "<｜tool▁calls▁begin｜> </think>"}, "deepseek_v3", "deepseek_r1"},
		{Model{Name: "deepseek-ai/DeepSeek-V3.1", Template: "<｜tool▁calls▁begin｜> </think>"}, "deepseek_v3", "qwen3"},
		{Model{Name: "openai/gpt-oss-20b"}, "harmony", "gpt_oss"},
		{Model{Name: "mine", Template: "<|channel|> <|constrain|>"}, "harmony", "gpt_oss"},
		{Model{Name: "zai-org/GLM-4.5", Template: "<tool_call> <arg_key> <think>"}, "glm45", "qwen3"},
		{Model{Name: "Kimi-K2-Instruct", Template: "<|tool_calls_section_begin|>"}, "kimi_k2", ""},
		{Model{Name: "MiniMax-M2", Template: "<minimax:tool_call><invoke name= <think>"}, "minimax_m2", "deepseek_r1"},
		{Model{Name: "Magistral-Small", Template: "[TOOL_CALLS] [THINK]"}, "mistral", "mistral"},
		{Model{Name: "Phi-4-mini-instruct", Template: "<|tool_call|>"}, "phi4", ""},
		{Model{Name: "granite-3.2-8b", Template: "<|tool_call|> Here is my thought process:"}, "granite", "granite"},
		{Model{Name: "meta-llama/Llama-3.1-8B-Instruct"}, "llama3_json", ""},
		{Model{Name: "functiongemma-270m-it"}, "gemma", ""},
	} {
		tools, reasoning := Detect(c.model)
		if tools != c.tools || reasoning != c.reasoning {
			t.Errorf("%s: got %q, %q; want %q, %q", c.model.Name, tools, reasoning, c.tools, c.reasoning)
		}
	}
}

// TestEvidenceNamesFormats says that what Detect returns is what New takes.
func TestEvidenceNamesFormats(t *testing.T) {
	for _, es := range [][]evidence{toolEvidence, toolNames} {
		for _, e := range es {
			if _, ok := findFormat(e.name); !ok {
				t.Errorf("no format %q", e.name)
			}
		}
	}
	for _, es := range [][]evidence{reasoningEvidence, reasoningNames} {
		for _, e := range es {
			if _, ok := findStyle(e.name); !ok {
				t.Errorf("no style %q", e.name)
			}
		}
	}
}

func TestOpenAfter(t *testing.T) {
	for prompt, want := range map[string]Start{
		"<|im_start|>assistant\n<think>\n":              StartOpen,
		"<|im_start|>assistant\n<think>\n\n</think>\n":  StartClosed,
		"<think></think> user\n<|im_start|>assistant\n": StyleDecides,
	} {
		if got := OpenAfter("qwen3", prompt); got != want {
			t.Errorf("%q: got %d, want %d", prompt, got, want)
		}
	}
}

func TestContinued(t *testing.T) {
	for text, want := range map[string]Start{
		"The answer":                 StartAmid,
		"<think>Okay, so":            StartOpen,
		"<think>Okay</think>So":      StartAmid,
		"a<think>b</think>c <think>": StartOpen,
	} {
		if got := Continued("deepseek_r1", text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

// TestDocument: operators find every name in the document, and none that is not.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/parsers.md")
	if err != nil {
		t.Fatal(err)
	}
	row := func(names []string) string {
		others := ""
		for i, n := range names[1:] {
			if i > 0 {
				others += ", "
			}
			others += "`" + n + "`"
		}
		return strings.ReplaceAll(fmt.Sprintf("| `%s` | %s |", names[0], others), "|  |", "| |")
	}
	for _, f := range formats {
		if want := row(f.names); !strings.Contains(string(text), want) {
			t.Errorf("format: no row %s", want)
		}
	}
	for _, s := range styles {
		if want := row(s.names); !strings.Contains(string(text), want) {
			t.Errorf("style: no row %s", want)
		}
	}
}

// TestMarkup: parsers are shown the special tokens that they read, and no others.
func TestMarkup(t *testing.T) {
	for _, f := range formats {
		g, err := Compile(Config{Tools: f.names[0], Reasoning: map[bool]string{true: "gpt_oss", false: "qwen3"}[f.harmony]})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"<|im_end|>", "</s>", "<|vision_start|>"} {
			if g.Markup(text) {
				t.Errorf("%s: %q is markup", f.names[0], text)
			}
		}
		for _, text := range append(f.open, f.drop...) {
			if !g.Markup(text) {
				t.Errorf("%s: %q is no markup", f.names[0], text)
			}
		}
	}
	for tools, texts := range map[string][]string{
		"harmony":      {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"},
		"mistral":      {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
		"deepseek_v3":  {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
		"kimi_k2":      {"<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"},
		"glm45":        {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
		"hermes":       {"<tool_call>", "</tool_call>", "<think>", "</think>"},
		"gemma":        {"<escape>", "<end_function_call>"},
		"deepseek_v32": {"｜DSML｜"},
	} {
		g, err := Compile(Config{Tools: tools, Reasoning: map[bool]string{true: "gpt_oss", false: "qwen3"}[tools == "harmony"]})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if !g.Markup(text) {
				t.Errorf("%s: %q is no markup", tools, text)
			}
		}
	}
}
