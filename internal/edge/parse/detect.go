package parse

import (
	"fmt"
	"slices"
	"strings"
)

// ModelHints is what is known of a model's output format before it runs.
type ModelHints struct {
	Name     string // of the checkpoint
	Template string // its chat template; may be ""
	// HasToken reports whether the vocabulary has an added token; may be nil.
	HasToken func(string) bool
}

// Detection is the result of DetectFormat.
type Detection struct {
	// Tools and Reasoning are a format and a style for Config; "" if there is no evidence.
	Tools, Reasoning string
	// Doubt says why Tools is "" although the model seems to write tool calls; else "".
	Doubt string
}

// markerEvidence is a set of markers which identify a format or a style if all of them are found.
type markerEvidence struct {
	name    string // "" is an unsupported format
	markers []string
}

// templateEvidence applies to chat templates. The first match decides. Markers which contain others therefore
// come first, and an unsupported format comes before supported ones which share a marker with it.
var templateEvidence = []markerEvidence{
	{"harmony", []string{"<|constrain|>"}},
	{"", []string{"<tool_sep>"}},
	{"", []string{"<|tool_call_start|>"}},
	{"", []string{"<steptml:invoke"}},
	{"", []string{"<｜tool_calls_begin｜>"}},
	{"", []string{"｜GCML｜"}},
	{"", []string{"<function name="}},
	{"", []string{"<|plugin|>"}},
	{"", []string{"<|START_ACTION|>"}},
	{"deepseek_v41", []string{"｜DSML｜", " calls>"}},
	{"deepseek_v32", []string{"｜DSML｜", "function_calls>"}},
	{"deepseek_v4", []string{"｜DSML｜", "tool_calls>"}},
	{"deepseek_v3", []string{"<｜tool▁calls▁begin｜>"}},
	{"kimi_k2", []string{"<|tool_calls_section_begin|>"}},
	{"minimax_m3", []string{tagPrefix}},
	{"minimax_m2", []string{"<minimax:tool_call>"}},
	{"mistral", []string{"[TOOL_CALLS]"}},
	{"gemma", []string{"<start_function_call>"}},
	{"gemma4", []string{"<tool_call|>"}},
	{"seed_oss", []string{"<seed:tool_call>"}},
	{"glm45", []string{"<tool_call>", "<arg_key>"}},
	{"qwen3_coder", []string{"<tool_call>", "<parameter="}},
	{"longcat", []string{"<longcat_tool_call>"}},
	{"nemotron_deci", []string{"<TOOLCALL>"}},
	{"pythonic", []string{"<|python_start|>"}},
	{"phi4", []string{"functools"}},
	{"olmo3", []string{"<function_calls>", "<functions>"}},
	{"granite-20b-fc", []string{"<function_call>", "<|function_call_library|>"}},
	{"minimax_m1", []string{"<tool_calls>", `"name`}},
	{"hermes", []string{"<tool_call>", `"name`}},
	{"llama3_json", []string{"<|python_tag|>"}},
	{"granite", []string{"<|tool_call|>", "<|start_of_role|>"}},
}

// tokenEvidence applies to vocabularies: markers of one format only.
var tokenEvidence = []markerEvidence{
	{"harmony", []string{"<|constrain|>"}},
	{"deepseek_v3", []string{"<｜tool▁calls▁begin｜>"}},
	{"kimi_k2", []string{"<|tool_calls_section_begin|>"}},
	{"minimax_m3", []string{tagPrefix}},
	{"minimax_m2", []string{"<minimax:tool_call>"}},
	{"mistral", []string{"[TOOL_CALLS]"}},
	{"gemma", []string{"<start_function_call>"}},
	{"gemma4", []string{"<tool_call|>"}},
	{"seed_oss", []string{"<seed:tool_call>"}},
	{"glm45", []string{"<tool_call>", "<arg_key>"}},
	{"pythonic", []string{"<|python_start|>"}},
}

// sharedMarkers are markers of several formats. The model's name may identify the right one.
var sharedMarkers = []string{
	"｜DSML｜", "<tool_call>", "<tool_calls>", "<|tool_call|>", "<function_call>", "<function_calls>", "<TOOLCALL>", "<|python_tag|>",
}

type nameEvidence struct{ part, name string }

// toolNames are parts of model names, each of versions with one tool call format. A family name without its
// version is no evidence.
var toolNames = []nameEvidence{
	{"gpt-oss", "harmony"},
	{"distill", ""},
	{"deepseek-v4.1", "deepseek_v41"},
	{"deepseek-v4", "deepseek_v4"},
	{"deepseek-v3.2-exp", "deepseek_v3"},
	{"deepseek-v3.2", "deepseek_v32"},
	{"deepseek-v3", "deepseek_v3"},
	{"deepseek-r1", "deepseek_v3"},
	{"kimi-k2", "kimi_k2"},
	{"minimax-m1", "minimax_m1"},
	{"minimax-m2", "minimax_m2"},
	{"minimax-m3", "minimax_m3"},
	{"mistral", "mistral"},
	{"magistral", "mistral"},
	{"ministral", "mistral"},
	{"devstral", "mistral"},
	{"functiongemma", "gemma"},
	{"gemma-4", "gemma4"},
	{"glm-4.5", "glm45"},
	{"glm-4.6", "glm45"},
	{"glm-4.7", "glm45"},
	{"glm-5", "glm45"},
	{"seed-oss", "seed_oss"},
	{"mimo-v", "mimo"},
	{"olmo-3", "olmo3"},
	{"hunyuan-a13b", "minimax_m1"},
	{"qwen3-coder", "qwen3_coder"},
	{"qwen3.5", "qwen3_coder"},
	{"qwen3.6", "qwen3_coder"},
	{"qwen3-", "hermes"},
	{"qwen2.5-", "hermes"},
	{"qwen2-", "hermes"},
	{"qwq-", "hermes"},
	{"hermes", "hermes"},
	{"phi-4-mini", "phi4"},
	{"llama-4", "pythonic"},
	{"llama-3.", "llama3_json"},
	{"granite-20b-functioncalling", "granite-20b-fc"},
	{"granite-4", "hermes"},
	{"granite-3", "granite"},
}

var reasoningNames = []nameEvidence{
	{"gpt-oss", "gpt_oss"},
	{"deepseek-r1", "deepseek_r1"},
	{"qwq", "deepseek_r1"},
	{"-thinking", "deepseek_r1"},
	{"minimax-m2", "deepseek_r1"},
	{"minimax-m1", "qwen3"},
	{"minimax-m3", "minimax_m3"},
	{"magistral", "mistral"},
	{"kimi-vl", "kimi"},
	{"granite-3", "granite"},
	{"gemma-4", "gemma4"},
	{"seed-oss", "seed_oss"},
	{"hunyuan-a13b", "hunyuan_a13b"},
	{"qwen3-coder", ""},
	{"qwen3", "qwen3"},
	{"glm-4.", "qwen3"},
	{"glm-5", "qwen3"},
	{"nemotron", "qwen3"},
}

var reasoningEvidence = []markerEvidence{
	{"gpt_oss", []string{"<|constrain|>"}},
	{"mistral", []string{"[THINK]"}},
	{"kimi", []string{"◁think▷"}},
	{"granite", []string{"Here is my thought process"}},
	{"gemma4", []string{"<channel|>"}},
	{"minimax_m3", []string{"<mm:think>"}},
	{"seed_oss", []string{"<seed:think>"}},
	{"hunyuan_a13b", []string{"<think>", "<answer>"}},
	{"ernie45", []string{"</think>", "<response>"}},
	{"qwen3", []string{"<think>"}},
	{"qwen3", []string{"</think>"}},
}

// DetectFormat detects the tool call format and the reasoning style of m. The template has the most weight,
// since it shows the model how to write; then the vocabulary; then the name. Evidence counts only if it is
// unique: a marker which several formats share counts only if the name identifies one of them. Only a name
// shows that a model starts inside reasoning without a marker; if the prompt is known, StartAfter is more
// reliable.
func DetectFormat(m ModelHints) Detection {
	name := strings.ToLower(m.Name)
	written := func(s string) bool { return strings.Contains(m.Template, s) }
	if strings.Contains(m.Template, `\"name`) { // in a string of the template
		written = func(s string) bool { return s == `"name` || strings.Contains(m.Template, s) }
	}
	has := func(s string) bool { return m.HasToken != nil && m.HasToken(s) }
	d := Detection{}
	d.Tools, d.Doubt = detectTools(name, written, has)
	d.Reasoning = matchName(reasoningNames, name)
	if e := firstMatching(reasoningEvidence, written); e != nil && !styleHasMarker(d.Reasoning, e.markers[0]) {
		d.Reasoning = e.name
	}
	if e := firstMatching(reasoningEvidence, has); e != nil && d.Reasoning == "" && !strings.Contains(name, "qwen3-coder") {
		d.Reasoning = e.name
	}
	return d
}

// styleHasMarker reports whether marker belongs to the style, and is no further evidence then.
func styleHasMarker(style, marker string) bool {
	s, _ := findStyle(style)
	return slices.Contains(s.open, marker) || slices.Contains(s.end, marker)
}

// detectTools returns the format of a model's tool calls, or why it is uncertain.
func detectTools(name string, written, has func(string) bool) (tools, doubt string) {
	named := matchName(toolNames, name)
	for _, source := range []struct {
		of    string
		tells []markerEvidence
		holds func(string) bool
	}{{"chat template", templateEvidence, written}, {"vocabulary", tokenEvidence, has}} {
		e := firstMatching(source.tells, source.holds)
		switch {
		case e == nil:
		case e.name == "":
			return "", fmt.Sprintf("its %s has %s, the marker of a format that is not read here", source.of, e.markers[0])
		case e.name == "qwen3_coder" && named == "mimo": // it writes values without line breaks
			return named, ""
		default:
			return e.name, ""
		}
		i := slices.IndexFunc(sharedMarkers, source.holds)
		if i < 0 {
			continue
		}
		candidates := formatsWithMarker(sharedMarkers[i])
		if slices.Contains(candidates, named) {
			return named, ""
		}
		return "", fmt.Sprintf("its %s has %s, which is a marker of %s", source.of, sharedMarkers[i], strings.Join(candidates, ", "))
	}
	if named == "" && written("tool_calls") {
		return "", "its chat template shows calls in a format that is not known"
	}
	return named, ""
}

// formatsWithMarker returns the formats whose tool calls have marker.
func formatsWithMarker(marker string) []string {
	var names []string
	for _, f := range formats {
		if slices.ContainsFunc(slices.Concat(f.open, f.drop), func(m string) bool { return strings.Contains(m, marker) }) {
			names = append(names, f.names[0])
		}
	}
	return names
}

// firstMatching returns the first evidence with all markers found, or nil.
func firstMatching(es []markerEvidence, holds func(string) bool) *markerEvidence {
	for i := range es {
		if !slices.ContainsFunc(es[i].markers, func(m string) bool { return !holds(m) }) {
			return &es[i]
		}
	}
	return nil
}

// matchName returns the result for the first part which name contains.
func matchName(es []nameEvidence, name string) string {
	for _, e := range es {
		if strings.Contains(name, e.part) {
			return e.name
		}
	}
	return ""
}
