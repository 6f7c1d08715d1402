package parse

import (
	"slices"
	"strings"
)

// toolFormat is a format of tool calls.
type format struct {
	names     []string // the first is ours, engines use the others
	open      []string // markers which start calls; the arg of open is the index here
	bare      []string // what starts calls where content starts; the arg of open is negative
	drop      []string // tokens without meaning
	separator string   // bytes between bare calls
	machine   func() opener
	shortIDs  bool
	harmony   bool
}

// formats is the table. Names other than the first are those used by vLLM, SGLang and their users.
var formats = []format{
	{
		names: []string{"hermes", "qwen", "qwen25", "qwen2.5", "qwen3_json", "granite4"}, open: []string{"<tool_call>"},
		machine: func() opener { return newObjects("</tool_call>") },
	},
	{
		names: []string{"llama3_json", "llama3", "llama4_json"}, open: []string{"<|python_tag|>"}, bare: []string{"{", "["}, separator: ";,",
		drop: []string{"<|eom_id|>", "<|eot_id|>"}, machine: func() opener { return newObjects() },
	},
	{names: []string{"json"}, bare: []string{"{", "["}, machine: func() opener { return newObjects() }},
	{
		names: []string{"pythonic", "llama4_pythonic"}, open: []string{"<|python_start|>"}, bare: []string{"["},
		drop: []string{"<|python_end|>", "<|eom_id|>", "<|eot|>", "<|eot_id|>"}, machine: func() opener { return newPythonic("") },
	},
	{
		names: []string{"olmo3"}, open: []string{"<function_calls>"},
		machine: func() opener { return newPythonic("</function_calls>") },
	},
	{names: []string{"mistral"}, open: []string{"[TOOL_CALLS]"}, machine: newMistral, shortIDs: true},
	{
		names: []string{"deepseek_v3", "deepseek_v31", "deepseekv3", "deepseekv31", "deepseek_r1"},
		open:  []string{"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
		machine: func() opener {
			return newHeaded(deepseekName, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
		},
	},
	{
		names:   []string{"deepseek_v32", "deepseekv32"},
		open:    []string{"<｜DSML｜function_calls>", "<｜DSML｜invoke name="},
		machine: func() opener { return newElements(dsml) },
	},
	{ // the model spells its first tag in several ways
		names:   []string{"deepseek_v4", "deepseekv4"},
		open:    []string{"<｜DSML｜tool_calls>", "<｜DSML｜invoke name=", "<｜DSML｜toolcalls>", "<｜DSML｜tool>"},
		machine: func() opener { return newElements(dsmlV4) },
	},
	{
		names:   []string{"deepseek_v41", "deepseekv41"},
		open:    []string{"<｜DSML｜ calls>", "<｜DSML｜ invoke name="},
		machine: func() opener { return newElements(dsmlV41) },
	},
	{
		names: []string{"kimi_k2"}, open: []string{"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
		machine: func() opener {
			return newHeaded(kimiName, "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
		},
	},
	{names: []string{"harmony", "gpt_oss", "gpt-oss", "openai"}, harmony: true},
	{names: []string{"glm45", "glm", "glm47"}, open: []string{"<tool_call>"}, machine: func() opener { return newElements(glm) }},
	{
		names: []string{"minimax_m2", "minimax", "minimax-m2"}, open: []string{"<minimax:tool_call>"},
		machine: func() opener { return newElements(miniMax) },
	},
	{names: []string{"minimax_m3", "minimax-m3"}, open: []string{tagPrefix + "<tool_call>"}, machine: newNested},
	{
		names: []string{"minimax_m1", "hunyuan_a13b", "jamba"}, open: []string{"<tool_calls>"},
		machine: func() opener { return newObjects("</tool_calls>") },
	},
	{
		names:   []string{"qwen3_coder", "qwen3_xml", "nemotron_nano", "nemotron3", "step3p5", "nanbeige"},
		open:    []string{"<tool_call>", "<function="},
		machine: func() opener { return newElements(qwenCoder) },
	},
	{names: []string{"mimo"}, open: []string{"<tool_call>", "<function="}, machine: func() opener { return newElements(miMo) }},
	{names: []string{"seed_oss"}, open: []string{"<seed:tool_call>", "<function="}, machine: func() opener { return newElements(seedOSS) }},
	{
		names: []string{"phi4", "phi4_mini_json"}, open: []string{"functools", "<|tool_call|>"}, drop: []string{"<|/tool_call|>"},
		machine: func() opener { return newObjects() },
	},
	{names: []string{"granite"}, open: []string{"<|tool_call|>", "<tool_call>"}, drop: []string{"</tool_call>"}, machine: func() opener { return newObjects() }},
	{names: []string{"granite-20b-fc"}, open: []string{"<function_call>"}, machine: func() opener { return newObjects() }},
	{names: []string{"longcat"}, open: []string{"<longcat_tool_call>"}, machine: func() opener { return newObjects("</longcat_tool_call>") }},
	{names: []string{"nemotron_deci"}, open: []string{"<TOOLCALL>"}, machine: func() opener { return newObjects("</TOOLCALL>") }},
	{names: []string{"gemma", "functiongemma"}, open: []string{"<start_function_call>"}, machine: func() opener { return newGemma("<escape>", "<end_function_call>") }},
	{names: []string{"gemma4"}, open: []string{"<|tool_call>"}, machine: func() opener { return newGemma(`<|"|>`, "<tool_call|>") }},
}

// reasoningStyle is a way to mark reasoning.
type style struct {
	names     []string
	open, end []string
	label     string // may follow open; not part of the reasoning
	forced    bool   // the template opens it, or the model starts inside it without a marker
	anywhere  bool   // the markers are tokens which users cannot type
	harmony   bool
	// answer and answerEnd may surround the content after reasoning.
	answer, answerEnd string
}

var thinkTags = style{open: []string{"<think>"}, end: []string{"</think>"}}

var styles = []style{
	{
		names: []string{
			"deepseek_r1", "deepseek-r1", "deepseek_v4", "deepseek-v4", "deepseek_v41", "deepseek-v41", "kimi_k2", "kimi_k25",
			"minimax_append_think", "minimax-append-think", "minimax_m2", "minimax_m2_append_think", "nemotron3", "nemotron_3", "nemotron_v3",
			"olmo3", "qwen3-thinking", "step3", "step3p5", "step5",
		},
		open: thinkTags.open, end: thinkTags.end, forced: true,
	},
	{
		names: []string{
			"qwen3", "basic", "deepseek_v3", "deepseek-v3", "glm45", "glm47", "granite_thinking_parser", "holo2", "interns1", "mimo",
			"minimax", "nanbeige", "nemotron", "nemotron_deci", "nemotron_nano",
		},
		open: thinkTags.open, end: thinkTags.end,
	},
	{names: []string{"kimi"}, open: []string{"◁think▷", "<think>"}, end: []string{"◁/think▷", "</think>"}},
	{names: []string{"mistral"}, open: []string{"[THINK]"}, end: []string{"[/THINK]"}, anywhere: true},
	{names: []string{"gpt_oss", "gpt-oss", "harmony", "openai_gptoss"}, harmony: true},
	{
		names: []string{"granite"}, open: []string{"Here is my thought process:", "Here's my thought process:", "<think>"},
		end: []string{"Here is my response:", "Here's my response:", "</think>"},
	},
	{names: []string{"gemma4"}, open: []string{"<|channel>"}, end: []string{"<channel|>"}, label: "thought\n", anywhere: true},
	{
		names: []string{"hunyuan_a13b", "hunyuan"}, open: thinkTags.open, end: thinkTags.end,
		answer: "<answer>", answerEnd: "</answer>",
	},
	{
		names: []string{"ernie45"}, open: thinkTags.open, end: thinkTags.end, forced: true,
		answer: "<response>", answerEnd: "</response>",
	},
	{names: []string{"minimax_m3", "minimax-m3"}, open: []string{"<mm:think>"}, end: []string{"</mm:think>"}},
	{names: []string{"seed_oss"}, open: []string{"<seed:think>"}, end: []string{"</seed:think>"}, forced: true},
}

// Formats lists our names among the values of Config.Tools.
func Formats() []string {
	var names []string
	for _, f := range formats {
		names = append(names, f.names[0])
	}
	return names
}

// Styles lists our names among the values of Config.Reasoning.
func Styles() []string {
	var names []string
	for _, s := range styles {
		names = append(names, s.names[0])
	}
	return names
}

func findFormat(name string) (format, bool) {
	for _, f := range formats {
		if slices.Contains(f.names, name) {
			return f, true
		}
	}
	return format{}, name == ""
}

func findStyle(name string) (style, bool) {
	for _, s := range styles {
		if slices.Contains(s.names, name) {
			return s, true
		}
	}
	return style{}, name == ""
}

// ContinuedStart returns the start state for the rest of an answer which begins with text: StartOpen if the
// last marker of the style in text opens reasoning, else StartAmid.
func Continued(reasoning, text string) Start {
	s, _ := findStyle(reasoning)
	if lastOf(s.open, text) > lastOf(s.end, text) {
		return StartOpen
	}
	return StartAmid
}

// lastIndexOfAny returns the index of the last of the markers in text; -1 if there is none.
func lastOf(markers []string, text string) int {
	last := -1
	for _, m := range markers {
		last = max(last, strings.LastIndex(text, m))
	}
	return last
}

// StartAfter returns the start state of an answer to prompt, as rendered by the model's template. It looks
// for a marker of the reasoning style at the end of the prompt, ignoring white space.
func OpenAfter(reasoning, prompt string) Start {
	s, _ := findStyle(reasoning)
	prompt = strings.TrimRight(prompt, " \n\r\t")
	for _, m := range s.open {
		if label := strings.TrimSpace(s.label); label != "" && strings.HasSuffix(prompt, m+label) {
			return StartOpen
		}
		if strings.HasSuffix(prompt, m) {
			return StartOpen
		}
	}
	for _, m := range s.end {
		if strings.HasSuffix(prompt, m) {
			return StartClosed
		}
	}
	return StyleDecides
}
