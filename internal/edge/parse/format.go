package parse

import (
	"slices"
	"strings"
)

// toolFormat is a format of tool calls.
type toolFormat struct {
	names     []string // the first is ours, engines use the others
	open      []string // markers which start calls; the arg of open is the index here
	inner     string   // what starts the next call of a section; "" if each has a marker of open
	bare      []string // what starts calls where content starts; the arg of open is negative
	drop      []string // tokens without meaning
	separator string   // bytes between bare calls
	machine   func() callMachine
	shortIDs  bool
	harmony   bool
}

// formats is the table. Names other than the first are those used by vLLM, SGLang and their users.
var formats = []toolFormat{
	{
		names: []string{"hermes", "qwen", "qwen25", "qwen2.5", "qwen3_json", "granite4"}, open: []string{"<tool_call>"},
		machine: func() callMachine { return newObjectMachine("</tool_call>") },
	},
	{
		names: []string{"llama3_json", "llama3", "llama4_json"}, open: []string{"<|python_tag|>"}, bare: []string{"{", "["}, separator: ";,",
		drop: []string{"<|eom_id|>", "<|eot_id|>"}, machine: func() callMachine { return newObjectMachine() },
	},
	{names: []string{"json"}, bare: []string{"{", "["}, machine: func() callMachine { return newObjectMachine() }},
	{
		names: []string{"pythonic", "llama4_pythonic"}, open: []string{"<|python_start|>"}, bare: []string{"["},
		drop: []string{"<|python_end|>", "<|eom_id|>", "<|eot|>", "<|eot_id|>"}, machine: func() callMachine { return newPythonicMachine("") },
	},
	{
		names: []string{"olmo3"}, open: []string{"<function_calls>"},
		machine: func() callMachine { return newPythonicMachine("</function_calls>") },
	},
	{names: []string{"mistral"}, open: []string{"[TOOL_CALLS]"}, machine: newMistralMachine, shortIDs: true},
	{
		names: []string{"deepseek_v3", "deepseek_v31", "deepseekv3", "deepseekv31", "deepseek_r1"},
		open:  []string{"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
		machine: func() callMachine {
			return newHeaderMachine(parseDeepSeekHeader, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
		},
	},
	{
		names:   []string{"deepseek_v32", "deepseekv32"},
		open:    []string{"<｜DSML｜function_calls>", "<｜DSML｜invoke name="},
		inner:   "<｜DSML｜invoke name=",
		machine: func() callMachine { return newElementMachine(dsml) },
	},
	{ // the model spells its first tag in several ways
		names:   []string{"deepseek_v4", "deepseekv4"},
		open:    []string{"<｜DSML｜tool_calls>", "<｜DSML｜invoke name=", "<｜DSML｜toolcalls>", "<｜DSML｜tool>"},
		inner:   "<｜DSML｜invoke name=",
		machine: func() callMachine { return newElementMachine(dsmlV4) },
	},
	{
		names:   []string{"deepseek_v41", "deepseekv41"},
		open:    []string{"<｜DSML｜ calls>", "<｜DSML｜ invoke name="},
		inner:   "<｜DSML｜ invoke name=",
		machine: func() callMachine { return newElementMachine(dsmlV41) },
	},
	{
		names: []string{"kimi_k2"}, open: []string{"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
		machine: func() callMachine {
			return newHeaderMachine(parseKimiHeader, "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
		},
	},
	{names: []string{"harmony", "gpt_oss", "gpt-oss", "openai"}, harmony: true},
	{names: []string{"glm45", "glm", "glm47"}, open: []string{"<tool_call>"}, machine: func() callMachine { return newElementMachine(glm) }},
	{
		names: []string{"minimax_m2", "minimax", "minimax-m2"}, open: []string{"<minimax:tool_call>"}, inner: "<invoke name=",
		machine: func() callMachine { return newElementMachine(miniMax) },
	},
	{names: []string{"minimax_m3", "minimax-m3"}, open: []string{tagPrefix + "<tool_call>"}, machine: newNestedMachine},
	{
		names: []string{"minimax_m1", "hunyuan_a13b", "jamba"}, open: []string{"<tool_calls>"},
		machine: func() callMachine { return newObjectMachine("</tool_calls>") },
	},
	{
		names:   []string{"qwen3_coder", "qwen3_xml", "nemotron_nano", "nemotron3", "step3p5", "nanbeige"},
		open:    []string{"<tool_call>", "<function="},
		machine: func() callMachine { return newElementMachine(qwenCoder) },
	},
	{names: []string{"mimo"}, open: []string{"<tool_call>", "<function="}, machine: func() callMachine { return newElementMachine(miMo) }},
	{names: []string{"seed_oss"}, open: []string{"<seed:tool_call>", "<function="}, machine: func() callMachine { return newElementMachine(seedOSS) }},
	{
		names: []string{"phi4", "phi4_mini_json"}, open: []string{"functools", "<|tool_call|>"}, drop: []string{"<|/tool_call|>"},
		machine: func() callMachine { return newObjectMachine() },
	},
	{names: []string{"granite"}, open: []string{"<|tool_call|>", "<tool_call>"}, drop: []string{"</tool_call>"}, machine: func() callMachine { return newObjectMachine() }},
	{names: []string{"granite-20b-fc"}, open: []string{"<function_call>"}, machine: func() callMachine { return newObjectMachine() }},
	{names: []string{"longcat"}, open: []string{"<longcat_tool_call>"}, machine: func() callMachine { return newObjectMachine("</longcat_tool_call>") }},
	{names: []string{"nemotron_deci"}, open: []string{"<TOOLCALL>"}, machine: func() callMachine { return newObjectMachine("</TOOLCALL>") }},
	{names: []string{"gemma", "functiongemma"}, open: []string{"<start_function_call>"}, machine: func() callMachine { return newGemmaMachine("<escape>", "<end_function_call>") }},
	{names: []string{"gemma4"}, open: []string{"<|tool_call>"}, machine: func() callMachine { return newGemmaMachine(`<|"|>`, "<tool_call|>") }},
}

// reasoningStyle is a way to mark reasoning.
type reasoningStyle struct {
	names     []string
	open, end []string
	label     string // may follow open; not part of the reasoning
	forced    bool   // the template opens it, or the model starts inside it without a marker
	anywhere  bool   // the markers are tokens which users cannot type
	harmony   bool
	// answer and answerEnd may surround the content after reasoning.
	answer, answerEnd string
}

var thinkTags = reasoningStyle{open: []string{"<think>"}, end: []string{"</think>"}}

var styles = []reasoningStyle{
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

func findFormat(name string) (toolFormat, bool) {
	for _, f := range formats {
		if slices.Contains(f.names, name) {
			return f, true
		}
	}
	return toolFormat{}, name == ""
}

func findStyle(name string) (reasoningStyle, bool) {
	for _, s := range styles {
		if slices.Contains(s.names, name) {
			return s, true
		}
	}
	return reasoningStyle{}, name == ""
}

// ContinuedStart returns the start state for the rest of an answer which begins with text: StartOpen if the
// last marker of the style in text opens reasoning, else StartAmid.
func ContinuedStart(reasoning, text string) StartState {
	s, _ := findStyle(reasoning)
	if lastIndexOfAny(s.open, text) > lastIndexOfAny(s.end, text) {
		return StartOpen
	}
	return StartAmid
}

// lastIndexOfAny returns the index of the last of the markers in text; -1 if there is none.
func lastIndexOfAny(markers []string, text string) int {
	last := -1
	for _, m := range markers {
		last = max(last, strings.LastIndex(text, m))
	}
	return last
}

// StartAfter returns the start state of an answer to prompt, as rendered by the model's template. It looks
// for a marker of the reasoning style at the end of the prompt, ignoring white space.
func StartAfter(reasoning, prompt string) StartState {
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

// IsMarkup reports whether text, the text of a special token, is a marker or part of one, which the parser
// must receive. Other special tokens are not part of an answer.
func (g *Grammar) IsMarkup(text string) bool {
	return slices.ContainsFunc(g.markup, func(m string) bool { return strings.Contains(m, text) })
}

// TokenMarkers returns the markers which count in some states only if PushToken reads them.
func (g *Grammar) TokenMarkers() []string {
	var markers []string
	for _, l := range slices.Concat(g.think.literals, g.mid.literals) {
		if (l.act == actUnclosed || l.act == actStray) && g.tokens[l.text] {
			markers = append(markers, l.text)
		}
	}
	return markers
}

// collectMarkup collects the markers for IsMarkup. It leaves out the brackets and commas of bare calls, which
// are text.
func (g *Grammar) collectMarkup(f *toolFormat, s *reasoningStyle) {
	var sets []*markerSet
	if g.harmony {
		sets = []*markerSet{&harmonyBetween, &harmonyInHeader, &harmonyInBody}
	} else if g.machine != nil {
		sets = g.machine().markerSets()
	}
	for _, of := range [][]string{f.open, f.drop, s.open, s.end} {
		g.markup = append(g.markup, of...)
	}
	for _, s := range sets {
		for _, l := range s.literals {
			g.markup = append(g.markup, l.text)
		}
	}
}
