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
	err := d.ReadMembers(func(key string) error {
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

// readDisplay reads thinking.display. Nothing is summarized: the client receives all of the thinking or none.
func (d *requestDecoder) readDisplay() error {
	s, err := d.ReadWord("summarized", "omitted")
	d.Req.HideReasoning = d.Req.HideReasoning || s == "omitted"
	return err
}

// outputConfigTable has the members of output_config. Chat templates have their own efforts, mostly low, medium
// and high.
var outputConfigTable = api.NewTable([]fieldRow{
	{Name: "effort", Read: func(d *requestDecoder) (err error) {
		d.effort, err = d.ReadWord("low", "medium", "high", "xhigh", "max")
		return err
	}},
	{Name: "format", Read: (*requestDecoder).readOutputFormat},
})

// readOutputFormat reads the schema which the text of the answer must match.
func (d *requestDecoder) readOutputFormat() error {
	f := api.Format{Kind: api.FormatSchema, Param: d.ParamPath()}
	var kind string
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "schema":
			raw, err := d.ReadRawObject()
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
	d.Req.Format = f
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
