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
func (d *requestDecoder) readThinking() error {
	var kind string
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "budget_tokens":
			var n int
			return d.ReadIntegerInto(&n, 1, strictjson.MaxCount)
		case "display":
			return d.readDisplay()
		}
		return d.UnsupportedError()
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
		return d.InvalidError("of type between_tools is not supported by this server: use enabled, adaptive or disabled")
	default:
		return d.InvalidError("needs a 'type' of enabled, adaptive or disabled")
	}
	return nil
}

func (d *requestDecoder) readDisplay() error {
	s, err := d.ReadString()
	switch {
	case err != nil:
		return err
	case s == "omitted":
		d.req.HideReasoning = true
		return nil
	case s == "summarized": // unabridged: nothing is summarized
		return nil
	}
	return d.InvalidError("must be summarized or omitted")
}

// readOutputConfig reads one field of output_config.
func (d *requestDecoder) readOutputConfig(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "effort":
		return d.readEffort()
	case "format":
		return d.readOutputFormat()
	}
	return d.UnsupportedError()
}

// readEffort reads the reasoning effort. Chat templates have their own values, mostly low, medium and high.
func (d *requestDecoder) readEffort() error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	switch s {
	case "low", "medium", "high", "xhigh", "max":
		d.effort = s
		return nil
	}
	return d.InvalidError("must be one of low, medium, high, xhigh and max")
}

// readOutputFormat reads the schema which the text of the answer must match.
func (d *requestDecoder) readOutputFormat() error {
	f := api.Format{Kind: api.FormatSchema, Param: d.ParamPath()}
	var kind string
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "schema":
			if d.Kind() != strictjson.ObjectKind {
				return d.WrongTypeError("an object")
			}
			raw, err := d.ReadRaw()
			f.Schema = bytes.Clone(raw)
			return err
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case kind != "json_schema":
		return d.InvalidError("needs a 'type' of json_schema")
	case f.Schema == nil:
		return d.InvalidError("needs a 'schema'")
	}
	d.formats++
	d.req.Format = f
	return nil
}

// buildTemplateArgs returns the chat template variables for thinking and effort. It sets both names in use
// for the switch, since templates ignore variables which they do not know.
func (d *requestDecoder) buildTemplateArgs() []byte {
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
