package openai

import (
	"bytes"

	"penstock/internal/strictjson"
)

// Variables of chat templates that say how much the model thinks. Templates look
// at one or the other; the effort's name is the request field's own.
const (
	effortVariable   = "reasoning_effort"
	thinkingVariable = "thinking"        // DeepSeek's
	enableVariable   = "enable_thinking" // Qwen's and GLM's
)

// templateArgs is chat_template_kwargs as it is written, a part of the body, and
// which of the variables above it has.
type templateArgs struct {
	text                     []byte // nil if it has no variables
	effort, thinking, enable bool
}

// templateArgs reads chat_template_kwargs.
func (d *decoder) templateArgs() error {
	a := &d.args
	empty := true
	text, err := d.Capture(func() error {
		return d.Object(func(key string) error {
			empty = false
			switch key {
			case effortVariable:
				a.effort = true
			case thinkingVariable:
				a.thinking = true
			case enableVariable:
				a.enable = true
			}
			return d.Skip()
		})
	})
	if !empty {
		a.text = text
	}
	return err
}

// reasoningEffort reads reasoning_effort.
func (d *decoder) reasoningEffort() error {
	s, err := d.String()
	if err != nil {
		return err
	}
	switch s {
	case "none", "minimal", "low", "medium", "high", "xhigh", "max":
		d.effort = s
		return nil
	}
	return d.Refuse("must be one of none, minimal, low, medium, high, xhigh and max")
}

// setTemplateArgs puts the template's variables into the request: the client's
// own, then those that its effort asks for and it has not set itself.
func (d *decoder) setTemplateArgs() {
	a := &d.args
	if d.effort == "" {
		d.req.TemplateArgs = bytes.Clone(a.text)
		return
	}
	out := []byte{'{'}
	if a.text != nil {
		out = append(out[:0], a.text[:len(a.text)-1]...) // without the bracket at the end
	}
	set := func(given bool, name string, value []byte) {
		if given {
			return
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = strictjson.AppendString(out, name)
		out = append(out, ':')
		out = append(out, value...)
	}
	set(a.effort, effortVariable, strictjson.AppendString(nil, d.effort))
	if d.effort == "none" {
		set(a.enable, enableVariable, []byte("false"))
		set(a.thinking, thinkingVariable, []byte("false"))
	}
	d.req.TemplateArgs = append(out, '}')
}
