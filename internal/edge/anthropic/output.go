package anthropic

import (
	"bytes"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// thinkMode says whether the model shall think; the zero value leaves it to the model's chat template.
type thinkMode uint8

const (
	thinkDefault thinkMode = iota
	thinkOn
	thinkOff
)

// readThinking reads whether the model shall think before it answers, and whether the client receives the
// thinking.
func (d *decoder) thinking() error {
	var kind string
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.Text(&kind)
		case "budget_tokens":
			var n int
			return d.Integer(&n, 1, strictjson.MaxCount)
		case "display":
			return d.display()
		}
		return d.Unsupported()
	})
	if err != nil {
		return err
	}
	switch kind {
	case "enabled", "adaptive":
		d.think = thinkOn
	case "disabled":
		d.think = thinkOff
	case "between_tools":
		return d.Refuse("of type between_tools is not supported by this server: use enabled, adaptive or disabled")
	default:
		return d.Refuse("needs a 'type' of enabled, adaptive or disabled")
	}
	return nil
}

func (d *decoder) display() error {
	s, err := d.String()
	switch {
	case err != nil:
		return err
	case s == "omitted":
		d.req.HideReasoning = true
		return nil
	case s == "summarized": // unabridged: nothing is summarized
		return nil
	}
	return d.Refuse("must be summarized or omitted")
}

// readOutputConfig reads one field of output_config.
func (d *decoder) outputConfig(key string) error {
	if none, err := d.Null(); none || err != nil {
		return err
	}
	switch key {
	case "effort":
		return d.readEffort()
	case "format":
		return d.format()
	}
	return d.Unsupported()
}

// readEffort reads the reasoning effort. Chat templates have their own values, mostly low, medium and high.
func (d *decoder) readEffort() error {
	s, err := d.String()
	if err != nil {
		return err
	}
	switch s {
	case "low", "medium", "high", "xhigh", "max":
		d.effort = s
		return nil
	}
	return d.Refuse("must be one of low, medium, high, xhigh and max")
}

// readOutputFormat reads the schema which the text of the answer must match.
func (d *decoder) format() error {
	f := api.Format{Kind: api.FormatSchema, Param: d.Param()}
	var kind string
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.Text(&kind)
		case "schema":
			if d.Kind() != strictjson.ObjectKind {
				return d.Expected("an object")
			}
			raw, err := d.Raw()
			f.Schema = bytes.Clone(raw)
			return err
		}
		return d.Unsupported()
	})
	switch {
	case err != nil:
		return err
	case kind != "json_schema":
		return d.Refuse("needs a 'type' of json_schema")
	case f.Schema == nil:
		return d.Refuse("needs a 'schema'")
	}
	d.formats++
	d.req.Format = f
	return nil
}

// buildTemplateArgs returns the chat template variables for thinking and effort. It sets both names in use
// for the switch, since templates ignore variables which they do not know.
func (d *decoder) templateArgs() []byte {
	var args []byte
	switch d.think {
	case thinkOn:
		args = append(args, `,"enable_thinking":true,"thinking":true`...)
	case thinkOff:
		args = append(args, `,"enable_thinking":false,"thinking":false`...)
	}
	if d.effort != "" {
		args = append(args, `,"reasoning_effort":"`...)
		args = append(args, d.effort...)
		args = append(args, '"')
	}
	if args == nil {
		return nil
	}
	args[0] = '{'
	return append(args, '}')
}
