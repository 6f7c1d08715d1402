package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/jinja"
)

// scripted is a checkpoint's own template. As with the reference, the prompt is
// one text whose special tokens are recognised wherever they stand, so a client
// that spells one in a message makes one: only the templates that are Go code
// keep the two apart.
type scripted struct {
	plain *jinja.Template
	tools *jinja.Template // for requests with tools; nil if none shows them
	calls bool            // the templates show what the assistant called
	named map[string]string
	now   func() time.Time
}

// tokenizerConfig is what a template needs of tokenizer_config.json.
type tokenizerConfig struct {
	Template json.RawMessage `json:"chat_template"`
	named    map[string]string
}

// namedTokens are the special tokens that templates know by name.
var namedTokens = [...]string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

func parseConfig(config []byte) (c tokenizerConfig, err error) {
	c.named = map[string]string{}
	if len(config) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return c, fault.New(fault.Invalid, "parse %s: %w", configFile, err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(config, &all); err != nil {
		return c, fault.New(fault.Invalid, "parse %s: %w", configFile, err)
	}
	for _, name := range namedTokens {
		var text string
		var long struct{ Content string }
		if json.Unmarshal(all[name], &text) == nil && text != "" {
			c.named[name] = text
		} else if json.Unmarshal(all[name], &long) == nil && long.Content != "" {
			c.named[name] = long.Content
		}
	}
	return c, nil
}

// sources returns the templates of a checkpoint by name, and the file they are
// in; that of templateFile hides those of configFile.
func (c tokenizerConfig) sources(file []byte) (sources map[string]string, from string, err error) {
	if len(file) > 0 {
		return map[string]string{"default": string(file)}, templateFile, nil
	}
	if len(c.Template) == 0 || string(c.Template) == "null" {
		return nil, "", nil
	}
	var one string
	if json.Unmarshal(c.Template, &one) == nil {
		if one == "" {
			return nil, "", nil
		}
		return map[string]string{"default": one}, configFile, nil
	}
	var several []struct{ Name, Template string }
	if json.Unmarshal(c.Template, &several) != nil {
		return nil, configFile, fault.New(fault.Unimplemented, "chat_template is neither a text nor a list of named texts")
	}
	sources = map[string]string{}
	for _, s := range several {
		sources[s.Name] = s.Template
	}
	if _, ok := sources["default"]; !ok {
		return nil, configFile, fault.New(fault.Unimplemented, "none of the named templates is called default")
	}
	return sources, configFile, nil
}

// newScripted compiles the templates of a checkpoint.
func newScripted(sources, named map[string]string) (*scripted, error) {
	t := &scripted{named: named, now: time.Now}
	var err error
	if t.plain, err = jinja.Compile(sources["default"]); err != nil {
		return nil, err
	}
	if source, ok := sources["tool_use"]; ok {
		if t.tools, err = jinja.Compile(source); err != nil {
			return nil, err
		}
	} else if strings.Contains(sources["default"], "tools") {
		t.tools = t.plain
	}
	t.calls = strings.Contains(sources["default"]+sources["tool_use"], "tool_calls")
	return t, nil
}

// unshown refuses what a model would never see.
func unshown(field string) error {
	err := fault.New(fault.Unimplemented, "this model's chat template does not show %s: leave it out, or ask a model that was trained on it", field)
	err.Param = field
	return err
}

// continueTag marks the end of a message that is left open, as the reference
// does: a template may strip the space at its end.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// Render implements prep.Template.
func (t *scripted) Render(dst []prep.Segment, c *prep.Chat) ([]prep.Segment, error) {
	if err := checkFlags(c); err != nil {
		return dst, err
	}
	if i := slices.IndexFunc(c.Messages, func(m prep.Message) bool { return len(m.ToolCalls) > 0 }); i >= 0 && !t.calls {
		return dst, unshown(fmt.Sprintf("messages[%d].tool_calls", i))
	}
	vars, err := t.variables(c)
	if err != nil {
		return dst, err
	}
	tmpl := t.plain
	if len(c.Tools) > 0 {
		if tmpl = t.tools; tmpl == nil {
			return dst, unshown("tools")
		}
	}
	text, err := tmpl.Render(vars, t.now())
	if err != nil {
		return dst, err
	}
	if c.ContinueFinal {
		at := strings.LastIndex(text, strings.TrimSpace(continueTag))
		if at < 0 {
			return dst, fault.Param("continue_final_message", "this model's chat template does not show the last message as it is, so that it cannot be continued")
		}
		open := strings.HasPrefix(text[at:], continueTag)
		if text = text[:at]; !open {
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		}
	}
	return append(dst, prep.Segment{Text: text, Special: true}), nil
}

// variables are what the reference gives a template.
func (t *scripted) variables(c *prep.Chat) (*jinja.Dict, error) {
	vars := jinja.NewDict()
	messages := make([]any, len(c.Messages))
	for i := range c.Messages {
		m, err := message(&c.Messages[i], c.ContinueFinal && i+1 == len(c.Messages))
		if err != nil {
			return nil, fault.Param(fmt.Sprintf("messages[%d]", i), "messages[%d]: %v", i, err)
		}
		messages[i] = m
	}
	vars.Set("messages", jinja.List(messages...))
	vars.Set("tools", nil)
	if len(c.Tools) > 0 {
		tools, err := jinja.FromJSON(c.Tools)
		if err != nil {
			return nil, fault.Param("tools", "tools: %v", err)
		}
		vars.Set("tools", tools)
	}
	vars.Set("documents", nil)
	vars.Set("add_generation_prompt", c.AddGenerationPrompt)
	for _, name := range namedTokens {
		if text, ok := t.named[name]; ok {
			vars.Set(name, text)
		}
	}
	return vars, setArgs(vars, c.Args)
}

// reserved are the variables that a request sets by fields of their own.
var reserved = [...]string{"messages", "tools", "documents", "add_generation_prompt"}

// argsField is where clients put args, as vLLM names it.
const argsField = "chat_template_kwargs"

// setArgs adds the variables in args, which may take the place of special tokens
// but not of what the request says elsewhere.
func setArgs(vars *jinja.Dict, args []byte) error {
	if len(args) == 0 {
		return nil
	}
	v, err := jinja.FromJSON(args)
	if err != nil {
		return fault.Param(argsField, "%s: %v", argsField, err)
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return fault.Param(argsField, "%s must be a JSON object", argsField)
	}
	for _, name := range reserved {
		if _, ok := d.Get(name); ok {
			return fault.Param(argsField+"."+name, "%s cannot set %s; use the request's own field for it, if there is one", argsField, name)
		}
	}
	d.Each(vars.Set)
	return nil
}

func message(m *prep.Message, open bool) (*jinja.Dict, error) {
	d := jinja.NewDict()
	d.Set("role", m.Role)
	switch {
	case len(m.Parts) > 0:
		parts, err := jinja.FromJSON(m.Parts)
		if err != nil {
			return nil, err
		}
		if open {
			return nil, fault.New(fault.Invalid, "a message of parts cannot be continued")
		}
		d.Set("content", parts)
	case open:
		d.Set("content", m.Content+continueTag)
	default:
		d.Set("content", m.Content)
	}
	for _, field := range [...]struct{ name, text string }{{"name", m.Name}, {"tool_call_id", m.ToolCallID}, {"reasoning_content", m.Reasoning}} {
		if field.text != "" {
			d.Set(field.name, field.text)
		}
	}
	if len(m.ToolCalls) > 0 {
		calls, err := jinja.FromJSON(m.ToolCalls)
		if err != nil {
			return nil, err
		}
		openArguments(calls)
		d.Set("tool_calls", calls)
	}
	return d, nil
}

// openArguments replaces arguments that are JSON in a text, as clients send them,
// by the object: templates are written for that, and encode it themselves.
func openArguments(calls any) {
	for _, call := range jinja.Items(calls) {
		d, ok := call.(*jinja.Dict)
		if !ok {
			continue
		}
		f, _ := d.Get("function")
		function, ok := f.(*jinja.Dict)
		if !ok {
			continue
		}
		a, _ := function.Get("arguments")
		text, ok := a.(string)
		if !ok {
			continue
		}
		if v, err := jinja.FromJSON([]byte(text)); err == nil {
			if object, ok := v.(*jinja.Dict); ok {
				function.Set("arguments", object)
			}
		}
	}
}

// turnEnds are tokens that families of models end a turn with.
var turnEnds = [...]string{chatMLEnd, turnEnd, "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>", "<|return|>", "<|call|>"}

// stops returns what ends a turn in a template: the end-of-sequence token, and
// the tokens of that meaning that it writes.
func stops(sources, named map[string]string) []string {
	var found []string
	if eos := named["eos_token"]; eos != "" {
		found = append(found, eos)
	}
	for _, end := range turnEnds {
		if end != named["eos_token"] && strings.Contains(sources["default"], end) {
			found = append(found, end)
		}
	}
	return found
}
