package parse

import "strings"

// Model is what can be known of how a model writes before it does.
type Model struct {
	Name     string // of the checkpoint
	Template string // its chat template; may be ""
	// HasToken reports whether the vocabulary has an added token; may be nil.
	HasToken func(string) bool
}

type evidence struct {
	marker string // in the template, or in the vocabulary
	name   string
}

// The first that holds decides; markers that others contain come behind them.
var toolEvidence = []evidence{
	{"<|constrain|>", "harmony"},
	{"｜DSML｜", "deepseek_v32"},
	{"<｜tool▁calls▁begin｜>", "deepseek_v3"},
	{"<|tool_calls_section_begin|>", "kimi_k2"},
	{"<minimax:tool_call>", "minimax_m2"},
	{"[TOOL_CALLS]", "mistral"},
	{"<start_function_call>", "gemma"},
	{"<tool_call|>", "gemma4"},
	{"<arg_key>", "glm45"},
	{"<parameter=", "qwen3_coder"},
	{"<TOOLCALL>", "nemotron_deci"},
	{"<|python_start|>", "pythonic"},
	{"functools", "phi4"},
	{"<tool_calls>", "minimax_m1"},
	{"<tool_call>", "hermes"},
	{"<|python_tag|>", "llama3_json"},
	{"<|tool_call|>", "granite"},
}

var toolNames = []evidence{
	{"gpt-oss", "harmony"},
	{"deepseek-v3.2", "deepseek_v32"},
	{"deepseek", "deepseek_v3"},
	{"kimi-k2", "kimi_k2"},
	{"minimax-m1", "minimax_m1"},
	{"minimax", "minimax_m2"},
	{"mistral", "mistral"},
	{"magistral", "mistral"},
	{"devstral", "mistral"},
	{"functiongemma", "gemma"},
	{"gemma-4", "gemma4"},
	{"glm-4", "glm45"},
	{"qwen3-coder", "qwen3_coder"},
	{"qwen", "hermes"},
	{"hermes", "hermes"},
	{"phi-4", "phi4"},
	{"llama-4", "pythonic"},
	{"llama-3", "llama3_json"},
	{"granite", "granite"},
}

var reasoningNames = []evidence{
	{"gpt-oss", "gpt_oss"},
	{"deepseek-r1", "deepseek_r1"},
	{"qwq", "deepseek_r1"},
	{"-thinking", "deepseek_r1"},
	{"minimax-m2", "deepseek_r1"},
	{"minimax-m1", "qwen3"},
	{"magistral", "mistral"},
	{"kimi-vl", "kimi"},
	{"granite-3", "granite"},
	{"qwen3-coder", ""},
	{"qwen3", "qwen3"},
	{"glm-4", "qwen3"},
	{"nemotron", "qwen3"},
}

var reasoningEvidence = []evidence{
	{"<|constrain|>", "gpt_oss"},
	{"[THINK]", "mistral"},
	{"◁think▷", "kimi"},
	{"Here is my thought process", "granite"},
	{"<think>", "qwen3"},
	{"</think>", "qwen3"},
}

// Detect guesses the format of m's calls and the style of its reasoning, for
// Config; "" where nothing tells. The template weighs most, since it shows the
// model how to write; then the vocabulary; then the name. Only a name tells
// that a model begins inside reasoning without saying so; where the prompt is
// known, OpenAfter knows better.
func Detect(m Model) (tools, reasoning string) {
	name := strings.ToLower(m.Name)
	named := func(s string) bool { return strings.Contains(name, s) }
	written := func(s string) bool { return strings.Contains(m.Template, s) }
	has := func(s string) bool { return m.HasToken != nil && m.HasToken(s) }
	tools = decide(toolEvidence, written)
	if tools == "" {
		tools = decide(toolEvidence, has)
	}
	if tools == "" {
		tools = decide(toolNames, named)
	}
	if tools == "granite" && named("phi") {
		tools = "phi4" // they share a token
	}
	reasoning = decide(reasoningNames, named)
	if r := decide(reasoningEvidence, written); r != "" && reasoning != "deepseek_r1" {
		reasoning = r
	}
	if reasoning == "" && !named("qwen3-coder") {
		reasoning = decide(reasoningEvidence, has)
	}
	return tools, reasoning
}

// decide returns the name of the first evidence that holds.
func decide(es []evidence, holds func(string) bool) string {
	for _, e := range es {
		if holds(e.marker) {
			return e.name
		}
	}
	return ""
}
