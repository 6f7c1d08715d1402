package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/jinja"
)

// checkpointTemplate is a checkpoint's own template. As with the reference, the prompt is one text whose
// special tokens are recognised anywhere, so a client which spells one in a message makes one: only the
// templates in Go keep the two apart.
//
// The variables are the same as in apply_chat_template in Python's transformers, after the steps which
// servers take before it: tool-call arguments which are JSON in a text become the object, and a developer
// message becomes a system message for a template which does not know the role. The keys of a message come in
// one fixed order, whatever the client's was.
type checkpointTemplate struct {
	plain     *compiledTemplate
	withTools *compiledTemplate // for requests with tools
	named     map[string]string
	now       func() time.Time
}

// compiledTemplate is one template of a checkpoint.
type compiledTemplate struct {
	*jinja.Template
	knowsDeveloper bool // it knows the role developer
	// wantsLists report, by rule, whether the template gets message content as lists.
	wantsLists [len(contentRules)]func() bool
}

func compileTemplate(source string) (*compiledTemplate, error) {
	t, err := jinja.Compile(source)
	if err != nil {
		return nil, err
	}
	s := &compiledTemplate{Template: t, knowsDeveloper: namesDeveloper(source)}
	for i := range contentRules {
		s.wantsLists[i] = sync.OnceValue(func() bool { return contentRules[i].wantsLists(t, source) })
	}
	return s, nil
}

// tokenizerConfig has the fields of tokenizer_config.json which a template needs.
type tokenizerConfig struct {
	Template json.RawMessage `json:"chat_template"`
	named    map[string]string
}

// namedTokens are the special tokens of every tokenizer. Templates know them by these names, and others by
// the names in a configuration.
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
	for name, raw := range all {
		standard := slices.Contains(namedTokens[:], name)
		if text, ok := tokenText(raw, standard); ok && (standard || strings.HasSuffix(name, "_token")) {
			c.named[name] = text
		}
	}
	for _, field := range [...]string{"extra_special_tokens", "model_specific_special_tokens"} {
		var more map[string]json.RawMessage
		if json.Unmarshal(all[field], &more) != nil {
			continue // a list: tokens without names
		}
		for name, raw := range more {
			if text, ok := tokenText(raw, false); ok {
				c.named[name] = text
			}
		}
	}
	return c, nil
}

// tokenText reads a token which is a text, or an object with the text in it. The object must state its type
// unless the field name does.
func tokenText(raw json.RawMessage, standard bool) (text string, ok bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", false
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var long struct {
		Type    string `json:"__type"`
		Content *string
	}
	if json.Unmarshal(raw, &long) != nil || long.Content == nil || !standard && long.Type != "AddedToken" {
		return "", false
	}
	return *long.Content, true
}

// hasNoTemplate reports whether the configuration has no template.
func (c tokenizerConfig) hasNoTemplate() bool {
	return len(c.Template) == 0 || string(c.Template) == "null" || string(c.Template) == `""`
}

// templateSources returns the templates of a checkpoint by name, and the file which has them; template files
// take precedence over configFile.
func (c tokenizerConfig) templateSources(file, toolUse []byte) (sources map[string]string, from string, err error) {
	if len(file) > 0 {
		sources = map[string]string{"default": string(file)}
		if len(toolUse) > 0 {
			sources["tool_use"] = string(toolUse)
		}
		return sources, templateFile, nil
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

// newCheckpointTemplate compiles the templates of a checkpoint.
func newCheckpointTemplate(sources, named map[string]string) (*checkpointTemplate, error) {
	t := &checkpointTemplate{named: named, now: time.Now}
	var err error
	if t.plain, err = compileTemplate(sources["default"]); err != nil {
		return nil, err
	}
	t.withTools = t.plain
	if source, ok := sources["tool_use"]; ok {
		if t.withTools, err = compileTemplate(source); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// continueTag marks the end of a message which is left open, as the reference does: a template may strip the
// space at its end.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// Render implements prep.Template.
func (t *checkpointTemplate) Render(dst []prep.Segment, c *prep.Chat) ([]prep.Segment, error) {
	if err := checkFlags(c); err != nil {
		return dst, err
	}
	script := t.templateFor(c)
	messages, err := messageDicts(c, func(role string, content any) any {
		return contentRules[c.Content].shapeContent(role, content, script.wantsLists[c.Content]())
	})
	if err != nil {
		return dst, err
	}
	if !script.knowsDeveloper {
		messages = developersAsSystem(messages)
	}
	return t.renderMessages(dst, c, script, messages)
}

// templateFor returns the template which renders a conversation.
func (t *checkpointTemplate) templateFor(c *prep.Chat) *compiledTemplate {
	if len(c.Tools) > 0 {
		return t.withTools
	}
	return t.plain
}

// contentShaper returns the form in which a template sees the content of a message of a role. Without content
// it gets and returns nil.
type contentShaper func(role string, content any) any

// messageDicts returns the messages as a template sees them.
func messageDicts(c *prep.Chat, shape contentShaper) ([]*jinja.Dict, error) {
	messages := make([]*jinja.Dict, len(c.Messages))
	for i := range c.Messages {
		m, err := messageDict(&c.Messages[i], shape)
		if err != nil {
			return nil, refuseMessage(i, err)
		}
		messages[i] = m
	}
	return messages, nil
}

func refuseMessage(i int, err error) error {
	return fault.InvalidParam(fmt.Sprintf("messages[%d]", i), "messages[%d]: %v", i, err)
}

// renderMessages renders messages, which it may change, with the rest of a conversation.
func (t *checkpointTemplate) renderMessages(dst []prep.Segment, c *prep.Chat, script *compiledTemplate, messages []*jinja.Dict) ([]prep.Segment, error) {
	final := ""
	if c.ContinueFinal {
		var err error
		if final, err = markContinuation(messages[len(messages)-1]); err != nil {
			return dst, refuseMessage(len(c.Messages)-1, err)
		}
	}
	vars, err := t.templateVariables(c, messages)
	if err != nil {
		return dst, err
	}
	text, err := script.Render(vars, t.now())
	if err != nil {
		return dst, err
	}
	if c.ContinueFinal {
		at := strings.LastIndex(text, strings.TrimSpace(continueTag))
		if at < 0 || !strings.Contains(text, strings.TrimFunc(final, isPythonSpace)) {
			return dst, fault.InvalidParam("continue_final_message", "this model's chat template does not show the last message as it is, so that it cannot be continued")
		}
		open := strings.HasPrefix(text[at:], continueTag)
		if text = text[:at]; !open {
			text = strings.TrimRightFunc(text, isPythonSpace)
		}
	}
	return append(dst, prep.Segment{Text: text, Special: true}), nil
}

// isPythonSpace reports whether Python's strip removes r.
func isPythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// templateVariables are the variables which the reference passes to a template.
func (t *checkpointTemplate) templateVariables(c *prep.Chat, messages []*jinja.Dict) (*jinja.Dict, error) {
	vars := jinja.NewDict()
	items := make([]any, len(messages))
	for i, m := range messages {
		items[i] = m
	}
	vars.Set("messages", jinja.List(items...))
	vars.Set("tools", nil)
	if len(c.Tools) > 0 {
		tools, err := jinja.FromJSON(c.Tools)
		if err != nil {
			return nil, fault.InvalidParam("tools", "tools: %v", err)
		}
		vars.Set("tools", tools)
	}
	vars.Set("documents", nil)
	vars.Set("add_generation_prompt", c.AddGenerationPrompt)
	for name, text := range t.named {
		vars.Set(name, text)
	}
	return vars, setArgs(vars, c.Args)
}

// reservedVariables are set by fields of the request.
var reservedVariables = [...]string{"messages", "tools", "documents", "add_generation_prompt"}

// argsField is the request field of args, as vLLM names it.
const argsField = "chat_template_kwargs"

// setArgs adds the variables in args, which may replace special tokens but no other fields of the request.
func setArgs(vars *jinja.Dict, args []byte) error {
	if len(args) == 0 {
		return nil
	}
	v, err := jinja.FromJSON(args)
	if err != nil {
		return fault.InvalidParam(argsField, "%s: %v", argsField, err)
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return fault.InvalidParam(argsField, "%s must be a JSON object", argsField)
	}
	for _, name := range reservedVariables {
		if _, ok := d.Get(name); ok {
			return fault.InvalidParam(argsField+"."+name, "%s cannot set %s; use the request's own field for it, if there is one", argsField, name)
		}
	}
	d.Each(vars.Set)
	return nil
}

// messageDict returns m as a template sees it: only the fields which are set, and the reasoning under both
// names which templates use.
func messageDict(m *prep.Message, shape contentShaper) (*jinja.Dict, error) {
	d := jinja.NewDict()
	if m.Reasoning != "" {
		d.Set("thinking", m.Reasoning)
	}
	d.Set("role", m.Role)
	var content any
	switch {
	case len(m.Parts) > 0:
		parts, err := jinja.FromJSON(m.Parts)
		if err != nil {
			return nil, err
		}
		content = parts
	case !m.NoContent:
		content = m.Content
	}
	if content = shape(m.Role, content); content != nil {
		d.Set("content", content)
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
		parseArguments(calls)
		d.Set("tool_calls", calls)
	}
	return d, nil
}

// markContinuation marks the end of a message's content, or of its last text part, and returns that text.
func markContinuation(m *jinja.Dict) (final string, err error) {
	content, _ := m.Get("content")
	if text, ok := content.(string); ok {
		m.Set("content", text+continueTag)
		return text, nil
	}
	parts := jinja.Items(content)
	for i := len(parts) - 1; i >= 0; i-- {
		part, ok := parts[i].(*jinja.Dict)
		if !ok {
			break
		}
		v, ok := part.Get("text")
		if text, isText := v.(string); isText {
			part.Set("text", text+continueTag)
			return text, nil
		} else if ok {
			break
		}
	}
	return "", errors.New("it has no text that could be continued")
}

// parseArguments replaces tool-call arguments which are JSON in a text, as clients send them, by the object,
// and missing ones by an empty object: templates expect objects and encode them themselves.
func parseArguments(calls any) {
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
		if a == nil || a == "" {
			function.Set("arguments", jinja.NewDict())
			continue
		}
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

// turnEndTokens are tokens with which model families end a turn.
var turnEndTokens = [...]string{chatMLEnd, turnEnd, "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>", "<|return|>", "<|call|>"}

// stopTexts returns the texts which end a turn in a template: the end-of-sequence token, and the turn-end
// tokens which the template writes.
func stopTexts(sources, named map[string]string) []string {
	var found []string
	if eos := named["eos_token"]; eos != "" {
		found = append(found, eos)
	}
	for _, end := range turnEndTokens {
		if end != named["eos_token"] && strings.Contains(sources["default"], end) {
			found = append(found, end)
		}
	}
	return found
}
