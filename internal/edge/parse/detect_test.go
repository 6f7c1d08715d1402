package parse

import (
	"fmt"
	"os"
	"regexp"
	"slices"
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
		model            ModelHints
		tools, reasoning string
	}{
		{ModelHints{}, "", ""},
		{ModelHints{Name: "Qwen/Qwen2.5-7B-Instruct", Template: "…<tool_call>\n{…}</tool_call>"}, "hermes", ""},
		{ModelHints{Name: "Qwen/Qwen3-8B", Template: "<tool_call> </think>"}, "hermes", "qwen3"},
		{ModelHints{Name: "Qwen/Qwen3-8B", HasToken: vocabulary("<tool_call>", "<think>")}, "hermes", "qwen3"},
		{ModelHints{Name: "Qwen3-Coder-30B", Template: "<tool_call>\n<function=f>\n<parameter=p>", HasToken: vocabulary("<think>")}, "qwen3_coder", ""},
		{ModelHints{Name: "deepseek-ai/DeepSeek-R1", Template: "<｜tool▁calls▁begin｜> </think>"}, "deepseek_v3", "deepseek_r1"},
		{ModelHints{Name: "deepseek-ai/DeepSeek-V3.1", Template: "<｜tool▁calls▁begin｜> </think>"}, "deepseek_v3", "qwen3"},
		{ModelHints{Name: "openai/gpt-oss-20b"}, "harmony", "gpt_oss"},
		{ModelHints{Name: "mine", Template: "<|channel|> <|constrain|>"}, "harmony", "gpt_oss"},
		{ModelHints{Name: "zai-org/GLM-4.5", Template: "<tool_call> <arg_key> <think>"}, "glm45", "qwen3"},
		{ModelHints{Name: "Kimi-K2-Instruct", Template: "<|tool_calls_section_begin|>"}, "kimi_k2", ""},
		{ModelHints{Name: "MiniMax-M2", Template: "<minimax:tool_call><invoke name= <think>"}, "minimax_m2", "deepseek_r1"},
		{ModelHints{Name: "Magistral-Small", Template: "[TOOL_CALLS] [THINK]"}, "mistral", "mistral"},
		{ModelHints{Name: "Phi-4-mini-instruct", Template: "<|tool_call|>"}, "phi4", ""},
		{ModelHints{Name: "granite-3.2-8b", Template: "<|tool_call|> Here is my thought process:"}, "granite", "granite"},
		{ModelHints{Name: "meta-llama/Llama-3.1-8B-Instruct"}, "llama3_json", ""},
		{ModelHints{Name: "functiongemma-270m-it"}, "gemma", ""},
		{ModelHints{Name: "deepseek-ai/DeepSeek-V3.2", HasToken: vocabulary("｜DSML｜", "<think>")}, "deepseek_v32", "qwen3"},
		{ModelHints{Name: "deepseek-ai/DeepSeek-V4-Flash", HasToken: vocabulary("｜DSML｜", "<think>")}, "deepseek_v4", "qwen3"},
		{ModelHints{Name: "mine", Template: "<｜DSML｜tool_calls> <think>"}, "deepseek_v4", "qwen3"},
		{ModelHints{Name: "mine", Template: "{% set d = '｜DSML｜' %}{{ '<' ~ d ~ 'function_calls>' }} message.tool_calls"}, "deepseek_v32", ""},
		{ModelHints{Name: "mine", Template: "<｜DSML｜ calls>"}, "deepseek_v41", ""},
		{ModelHints{Name: "MiniMax-M3", Template: `{% set ns = "]<]minimax[>[" %}{{ ns }}<tool_call>{{ ns }}<invoke name="f"> <mm:think>`}, "minimax_m3", "minimax_m3"},
		{ModelHints{Name: "ibm-granite/granite-20b-functioncalling", Template: `<|function_call_library|> <function_call> {"name": …}`}, "granite-20b-fc", ""},
		{ModelHints{Name: "granite-20b-functioncalling"}, "granite-20b-fc", ""},
		{ModelHints{Name: "ibm-granite/granite-4.0-h-small", HasToken: vocabulary("<tool_call>", "<|tool_call|>")}, "hermes", ""},
		{ModelHints{Name: "ByteDance-Seed/Seed-OSS-36B", Template: "<seed:tool_call>\n<function=f>\n<parameter=p> <seed:think>"}, "seed_oss", "seed_oss"},
		{ModelHints{Name: "Qwen/Qwen3.5-35B-A3B", HasToken: vocabulary("<tool_call>", "<think>")}, "qwen3_coder", "qwen3"},
		{ModelHints{Name: "Qwen/Qwen3.6-27B"}, "qwen3_coder", "qwen3"},
		{ModelHints{Name: "Qwen/Qwen3-Next-80B-A3B-Instruct", HasToken: vocabulary("<tool_call>")}, "hermes", "qwen3"},
		{ModelHints{Name: "mine", Template: `{{- '<tool_call>\n{\"name\": \"' + c.name }}`}, "hermes", ""},
		{ModelHints{Name: "XiaomiMiMo/MiMo-V2", Template: "<tool_call>\n<function=f><parameter=p>v</parameter>"}, "mimo", ""},
		{ModelHints{Name: "google/gemma-4-31B-it", HasToken: vocabulary("<tool_call|>", "<channel|>")}, "gemma4", "gemma4"},
		{ModelHints{Name: "allenai/Olmo-3-7B-Instruct", Template: "<functions> <function_calls>"}, "olmo3", ""},
		{ModelHints{Name: "tencent/Hunyuan-A13B-Instruct", Template: `<tool_calls>[{"name": … <think> <answer>`}, "minimax_m1", "hunyuan_a13b"},
		{ModelHints{Name: "tencent/Hunyuan-A13B-Instruct", Template: "<think> {{ message.tool_calls }}"}, "minimax_m1", "hunyuan_a13b"},
		{ModelHints{Name: "moonshotai/Kimi-VL-A3B-Thinking", Template: "◁think▷"}, "", "kimi"},
		{ModelHints{Name: "zai-org/GLM-4.7"}, "glm45", "qwen3"},
		{ModelHints{Name: "zai-org/glm-4-9b-chat"}, "", ""},
	} {
		d := DetectFormat(c.model)
		if d.Tools != c.tools || d.Reasoning != c.reasoning || d.Tools != "" && d.Doubt != "" {
			t.Errorf("%s %s: got %+v; want %q, %q", c.model.Name, c.model.Template, d, c.tools, c.reasoning)
		}
	}
}

// TestDetectDoubts: an uncertain format is not chosen, and the evidence is reported.
func TestDetectDoubts(t *testing.T) {
	tokens := func(tokens ...string) func(string) bool {
		return func(s string) bool { return slices.Contains(tokens, s) }
	}
	for _, c := range []struct {
		model ModelHints
		doubt string // a part of it
	}{
		{ModelHints{Name: "mine", HasToken: tokens("<tool_call>")}, "vocabulary has <tool_call>, which is a marker of hermes, glm45,"},
		{ModelHints{Name: "Qwen/Qwen4-8B", HasToken: tokens("<tool_call>")}, "vocabulary has <tool_call>"},
		{ModelHints{Name: "mine", Template: "<tool_call> {{ message.tool_calls }}"}, "chat template has <tool_call>"},
		{ModelHints{Name: "deepseek-ai/DeepSeek-V5", HasToken: tokens("｜DSML｜")}, "marker of deepseek_v32, deepseek_v4, deepseek_v41"},
		{ModelHints{Name: "tencent/Hy3", Template: "<tool_calls><tool_call>f<tool_sep><arg_key>k"}, "<tool_sep>, the marker of a format that is not read here"},
		{ModelHints{Name: "LiquidAI/LFM2-8B", Template: `<|tool_call_start|>[f()] "name" <tool_call>`}, "not read here"},
		{ModelHints{Name: "mine", Template: "{% for c in message.tool_calls %}{{ c }}{% endfor %}"}, "format that is not known"},
		{ModelHints{Name: "mine", Template: "<|tool_call|>"}, "marker of phi4, granite"},
	} {
		if d := DetectFormat(c.model); d.Tools != "" || !strings.Contains(d.Doubt, c.doubt) {
			t.Errorf("%s %s: got %+v; want %q", c.model.Name, c.model.Template, d, c.doubt)
		}
	}
	for _, m := range []ModelHints{{}, {Name: "gpt2"}, {Template: "{{ messages[0].content }}"}} {
		if d := DetectFormat(m); d != (Detection{}) {
			t.Errorf("%+v: got %+v", m, d)
		}
	}
}

// TestEvidenceNamesFormats: the results of DetectFormat are accepted by CompileGrammar.
func TestEvidenceNamesFormats(t *testing.T) {
	for _, es := range [][]markerEvidence{templateEvidence, tokenEvidence} {
		for _, e := range es {
			if f, ok := findFormat(e.name); !ok || e.name != "" && e.name != f.names[0] {
				t.Errorf("no format %q", e.name)
			}
		}
	}
	for _, e := range toolNames {
		if f, ok := findFormat(e.name); !ok || e.name != "" && e.name != f.names[0] {
			t.Errorf("no format %q", e.name)
		}
	}
	for _, e := range reasoningEvidence {
		if _, ok := findStyle(e.name); !ok {
			t.Errorf("no style %q", e.name)
		}
	}
	for _, e := range reasoningNames {
		if _, ok := findStyle(e.name); !ok {
			t.Errorf("no style %q", e.name)
		}
	}
}

// TestNamesOfServers: the names registered by vLLM 0.33 and SGLang 0.5.23 are accepted if their format is
// supported.
func TestNamesOfServers(t *testing.T) {
	for format, names := range map[string]string{
		"hermes": "hermes qwen qwen25 qwen3_json granite4", "llama3_json": "llama3_json llama4_json llama3", "pythonic": "pythonic llama4_pythonic",
		"olmo3": "olmo3", "mistral": "mistral", "deepseek_v3": "deepseek_v3 deepseek_v31 deepseekv3 deepseekv31", "deepseek_v32": "deepseek_v32 deepseekv32",
		"deepseek_v4": "deepseek_v4 deepseekv4", "deepseek_v41": "deepseek_v41 deepseekv41", "kimi_k2": "kimi_k2", "harmony": "openai gpt-oss",
		"glm45": "glm45 glm47 glm", "minimax_m2": "minimax_m2 minimax-m2", "minimax_m3": "minimax_m3 minimax-m3", "minimax_m1": "hunyuan_a13b jamba",
		"qwen3_coder": "qwen3_coder qwen3_xml step3p5 nanbeige", "mimo": "mimo", "seed_oss": "seed_oss", "phi4": "phi4_mini_json", "granite": "granite",
		"granite-20b-fc": "granite-20b-fc", "longcat": "longcat", "gemma": "functiongemma", "gemma4": "gemma4",
	} {
		for name := range strings.FieldsSeq(names) {
			if f, ok := findFormat(name); !ok || f.names[0] != format {
				t.Errorf("tool-call parser %s is %v, want %s", name, f.names, format)
			}
		}
	}
	for style, names := range map[string]string{
		"deepseek_r1": "deepseek_r1 deepseek_v4 deepseek_v41 kimi_k2 minimax_m2 minimax_m2_append_think nemotron_v3 olmo3 step3 step3p5 step5 " +
			"deepseek-r1 deepseek-v4 deepseek-v41 qwen3-thinking minimax-append-think nemotron_3",
		"qwen3": "qwen3 deepseek_v3 glm45 glm47 granite_thinking_parser holo2 mimo deepseek-v3 minimax nanbeige interns1",
		"kimi":  "kimi", "mistral": "mistral", "gpt_oss": "openai_gptoss gpt-oss", "granite": "granite", "gemma4": "gemma4",
		"hunyuan_a13b": "hunyuan_a13b hunyuan", "ernie45": "ernie45", "minimax_m3": "minimax_m3 minimax-m3", "seed_oss": "seed_oss",
	} {
		for name := range strings.FieldsSeq(names) {
			if s, ok := findStyle(name); !ok || s.names[0] != style {
				t.Errorf("reasoning parser %s is %v, want %s", name, s.names, style)
			}
		}
	}
}

func TestOpenAfter(t *testing.T) {
	for prompt, want := range map[string]StartState{
		"<|im_start|>assistant\n<think>\n":              StartOpen,
		"<|im_start|>assistant\n<think>\n\n</think>\n":  StartClosed,
		"<think></think> user\n<|im_start|>assistant\n": StyleDecides,
	} {
		if got := StartAfter("qwen3", prompt); got != want {
			t.Errorf("%q: got %d, want %d", prompt, got, want)
		}
	}
}

func TestContinued(t *testing.T) {
	for text, want := range map[string]StartState{
		"The answer":                 StartAmid,
		"<think>Okay, so":            StartOpen,
		"<think>Okay</think>So":      StartAmid,
		"a<think>b</think>c <think>": StartOpen,
	} {
		if got := ContinuedStart("deepseek_r1", text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

// TestDocument checks that docs/parsers.md lists exactly the names which operators may
// give: each parser in a table, and its other names in a list.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile("../../../docs/parsers.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(data), "\n  ", " ") + "\x00" // the end
	between := func(start, end string) string {
		_, rest, found := strings.Cut(text, start)
		part, _, ends := strings.Cut(rest, end)
		if !found || !ends {
			t.Fatalf("no part from %q to %q", start, end)
		}
		return part
	}
	check := func(what, table, list string, names [][]string) {
		var rows, items []string
		for _, n := range names {
			rows = append(rows, n[0])
			if len(n) > 1 {
				items = append(items, fmt.Sprintf("* `%s`: `%s`", n[0], strings.Join(n[1:], "`, `")))
			}
		}
		var haveRows []string
		for _, m := range regexp.MustCompile("(?m)^[|] `([^`-][^`]*)` [|]").FindAllStringSubmatch(table, -1) {
			haveRows = append(haveRows, m[1])
		}
		if !equalSets(haveRows, rows) {
			t.Errorf("%s: the table has %q, want %q", what, haveRows, rows)
		}
		if have := regexp.MustCompile(`(?m)^\* .*$`).FindAllString(list, -1); !equalSets(have, items) {
			t.Errorf("%s: the list of other names is\n%s\nwant\n%s", what, strings.Join(have, "\n"), strings.Join(items, "\n"))
		}
	}
	var tools, reasoning [][]string
	for _, f := range formats {
		tools = append(tools, f.names)
	}
	for _, s := range styles {
		reasoning = append(reasoning, s.names)
	}
	toolList, reasoningList, _ := strings.Cut(between("\n## Names in other servers\n", "\x00"), "`--reasoning-parser` also")
	check("format", between("\n## Tool calls\n", "\n## "), toolList, tools)
	check("style", between("\n## Reasoning\n", "\n## "), reasoningList, reasoning)
}

// equalSets reports whether a and b have the same elements in any order.
func equalSets(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// TestMarkup: IsMarkup accepts the special tokens which parsers read, and no others.
func TestMarkup(t *testing.T) {
	for _, f := range formats {
		g, err := CompileGrammar(Config{Tools: f.names[0], Reasoning: map[bool]string{true: "gpt_oss", false: "qwen3"}[f.harmony]})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"<|im_end|>", "</s>", "<|vision_start|>"} {
			if g.IsMarkup(text) {
				t.Errorf("%s: %q is markup", f.names[0], text)
			}
		}
		for _, text := range append(f.open, f.drop...) {
			if !g.IsMarkup(text) {
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
		g, err := CompileGrammar(Config{Tools: tools, Reasoning: map[bool]string{true: "gpt_oss", false: "qwen3"}[tools == "harmony"]})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if !g.IsMarkup(text) {
				t.Errorf("%s: %q is no markup", tools, text)
			}
		}
	}
}
