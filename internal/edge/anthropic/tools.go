package anthropic

import (
	"bytes"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const (
	maxTools    = 1536
	maxToolName = 128 // bytes
)

// toolDeclaration is an element of tools.
type toolDeclaration struct {
	name        string
	description *string
	schema      []byte
}

// readTools reads the functions which the model may call, and writes them in the form of a chat request.
func (d *requestDecoder) readTools() error {
	q := d.Req
	names := map[string]bool{}
	out := []byte{'['}
	err := d.ReadArray("an array of tools", func(i int) error {
		if i >= maxTools {
			return d.ParentInvalidError("must have at most %d tools", maxTools)
		}
		t, err := d.readTool()
		if err != nil {
			return err
		}
		if names[t.name] {
			return d.InvalidError("has the name of an earlier tool: names must differ")
		}
		names[t.name] = true
		q.Tools = append(q.Tools, api.Tool{Name: t.name, Parameters: t.schema})
		out = strictjson.AppendComma(out, i)
		out = api.AppendTool(out, t.name, t.description, t.schema)
		return nil
	})
	if len(q.Tools) > 0 {
		q.ToolsJSON = append(out, ']')
	}
	return err
}

func (d *requestDecoder) readTool() (*toolDeclaration, error) {
	kind, err := d.PeekType()
	switch {
	case err != nil:
		return nil, err
	case kind != "" && kind != "custom":
		return nil, d.InvalidError("is of type %.100q, which is not supported by this server: send custom tools with an 'input_schema'", kind)
	}
	t := &toolDeclaration{}
	err = d.readBlockMembers(func(key string) (bool, error) { return d.readToolField(t, key) })
	switch {
	case err != nil:
		return nil, err
	case t.name == "":
		return nil, d.InvalidError("needs a 'name'")
	case t.schema == nil:
		return nil, d.InvalidError("needs an 'input_schema'")
	}
	return t, nil
}

// readToolField reads the value of one key of a tool.
func (d *requestDecoder) readToolField(t *toolDeclaration, key string) (known bool, err error) {
	switch key {
	case "name":
		err := d.ReadStringInto(&t.name)
		if err == nil && !api.IsValidName(t.name, maxToolName, "_-.") {
			return true, d.InvalidError("must have between 1 and %d letters, digits, '_', '-' and '.'", maxToolName)
		}
		return true, err
	case "description":
		s, err := d.ReadString()
		if s != "" {
			t.description = &s
		}
		return true, err
	case "input_schema":
		raw, err := d.ReadRawObject()
		t.schema = bytes.Clone(raw)
		return true, err
	case "eager_input_streaming", "strict":
		// Arguments are streamed as the model generates them.
		return true, d.SkipValue()
	case "defer_loading": // until a search tool finds it
		return true, d.RequireFalse()
	case "input_examples":
		return true, d.RequireEmptyArray(api.NotSupported)
	case "allowed_callers":
		return true, d.ReadArray("an array of strings", func(int) error { return d.RequireString("direct") })
	}
	return false, nil
}

// readToolChoice reads tool_choice.
func (d *requestDecoder) readToolChoice() error {
	c := &d.Req.ToolChoice
	var kind string
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "name":
			return d.ReadStringInto(&c.Name)
		case "disable_parallel_tool_use":
			return d.ReadBoolInto(&d.Req.OneCall)
		}
		return d.UnsupportedError()
	})
	if err != nil {
		return err
	}
	switch kind {
	case "auto":
		c.Mode = api.ToolAuto
	case "any":
		c.Mode = api.ToolRequired
	case "tool":
		c.Mode = api.ToolNamed
	case "none":
		c.Mode = api.ToolNone
	default:
		return d.InvalidError("needs a 'type' of auto, any, tool or none")
	}
	if (c.Name != "") != (c.Mode == api.ToolNamed) {
		return d.InvalidError("must have a 'name' if its type is tool, and only then")
	}
	return nil
}

// checkToolChoice validates tool_choice against tools.
func (d *requestDecoder) checkToolChoice() error {
	c := d.Req.ToolChoice
	switch c.Mode {
	case api.ToolRequired:
		if len(d.Req.Tools) == 0 {
			return fault.InvalidParam("tool_choice", "'tool_choice' of type any needs 'tools'")
		}
	case api.ToolNamed:
		for _, t := range d.Req.Tools {
			if t.Name == c.Name {
				return nil
			}
		}
		return fault.InvalidParam("tool_choice", "'tool_choice' names a tool that is not among 'tools'")
	}
	return nil
}
