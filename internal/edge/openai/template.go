package openai

import (
	"bytes"

	"penstock/internal/strictjson"
)

// Chat template variables which control reasoning. Templates use one or the other; the name of the effort is
// that of the request field.
const (
	effortVariable   = "reasoning_effort"
	thinkingVariable = "thinking"        // DeepSeek's
	enableVariable   = "enable_thinking" // Qwen's and GLM's
)

// fillVariable is the template variable which also sets Request.FillContent. Clients of Nemotron 3 and Granite use it.
const fillVariable = "force_nonempty_content"

// templateArgs is the text of chat_template_kwargs, a slice of the body, and which of the variables above it
// sets.
type templateArgs struct {
	text                     []byte // nil if it sets no variables
	effort, thinking, enable bool
}

// readTemplateArgs reads chat_template_kwargs.
func (d *requestDecoder) readTemplateArgs() error {
	a := &d.args
	empty := true
	text, err := d.CaptureRaw(func() error {
		return d.ReadObject(func(key string) error {
			empty = false
			switch key {
			case effortVariable:
				a.effort = true
			case thinkingVariable:
				a.thinking = true
			case enableVariable:
				a.enable = true
			case fillVariable:
				if d.Kind() == strictjson.BoolKind {
					return d.ReadBoolInto(&d.Req.FillContent)
				}
			}
			return d.SkipValue()
		})
	})
	if !empty {
		a.text = text
	}
	return err
}

// efforts are the values of reasoning_effort.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// readReasoningEffort reads reasoning_effort.
func (d *requestDecoder) readReasoningEffort() (err error) {
	d.effort, err = d.ReadWord(efforts...)
	return err
}

// setTemplateArgs sets the request's template variables: the client's own, then the variables of its reasoning effort
// which it did not set itself.
func (d *requestDecoder) setTemplateArgs() {
	a := &d.args
	if d.effort == "" {
		d.Req.TemplateArgs = bytes.Clone(a.text)
		return
	}
	out := []byte{'{'}
	if a.text != nil {
		out = append(out[:0], a.text[:len(a.text)-1]...) // without the closing brace
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
	d.Req.TemplateArgs = append(out, '}')
}
