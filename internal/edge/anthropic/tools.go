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
type tool struct {
	name        string
	description string
	schema      []byte
}

// readTools reads the functions which the model may call, and writes them in the form of a chat request.
func (d *decoder) tools() error {
	q := d.req
	names := map[string]bool{}
	out := []byte{'['}
	err := d.Array("an array of tools", func(i int) error {
		if i >= maxTools {
			return d.RefuseParent("must have at most %d tools", maxTools)
		}
		t, err := d.tool()
		if err != nil {
			return err
		}
		if names[t.name] {
			return d.Refuse("has the name of an earlier tool: names must differ")
		}
		names[t.name] = true
		q.Tools = append(q.Tools, api.Tool{Name: t.name, Parameters: t.schema})
		if i > 0 {
			out = append(out, ',')
		}
		out = t.appendFunction(out)
		return nil
	})
	if len(q.Tools) > 0 {
		q.ToolsJSON = append(out, ']')
	}
	return err
}

func (d *decoder) tool() (*tool, error) {
	kind, err := d.TypeAhead()
	switch {
	case err != nil:
		return nil, err
	case kind != "" && kind != "custom":
		return nil, d.Refuse("is of type %.100q, which is not supported by this server: send custom tools with an 'input_schema'", kind)
	}
	t := &tool{}
	err = d.members(func(key string) (bool, error) { return d.toolField(t, key) })
	switch {
	case err != nil:
		return nil, err
	case t.name == "":
		return nil, d.Refuse("needs a 'name'")
	case t.schema == nil:
		return nil, d.Refuse("needs an 'input_schema'")
	}
	return t, nil
}

// readToolField reads the value of one key of a tool.
func (d *decoder) toolField(t *tool, key string) (known bool, err error) {
	switch key {
	case "name":
		err := d.Text(&t.name)
		if err == nil && !api.IsName(t.name, maxToolName, "_-.") {
			return true, d.Refuse("must have between 1 and %d letters, digits, '_', '-' and '.'", maxToolName)
		}
		return true, err
	case "description":
		return true, d.Text(&t.description)
	case "input_schema":
		if d.Kind() != strictjson.ObjectKind {
			return true, d.Expected("an object")
		}
		raw, err := d.Raw()
		t.schema = bytes.Clone(raw)
		return true, err
	case "eager_input_streaming", "strict":
		// Arguments are streamed as the model generates them.
		return true, d.Skip()
	case "defer_loading": // until a search tool finds it
		return true, d.unset()
	case "input_examples":
		return true, d.emptyArray()
	case "allowed_callers":
		return true, d.Array("an array of strings", func(int) error { return d.usual("direct") })
	}
	return false, nil
}

// requireFalse reads a boolean which must be false.
func (d *decoder) unset() error {
	on, err := d.Bool()
	if err == nil && on {
		return d.notSupported()
	}
	return err
}

// appendFunction appends t as an element of a chat request's tools.
func (t *tool) appendFunction(dst []byte) []byte {
	dst = append(dst, `{"type":"function","function":{"name":`...)
	dst = strictjson.AppendString(dst, t.name)
	if t.description != "" {
		dst = append(dst, `,"description":`...)
		dst = strictjson.AppendString(dst, t.description)
	}
	dst = append(dst, `,"parameters":`...)
	dst = append(dst, t.schema...)
	return append(dst, `}}`...)
}

// readToolChoice reads tool_choice.
func (d *decoder) toolChoice() error {
	c := &d.req.ToolChoice
	var kind string
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.Text(&kind)
		case "name":
			return d.Text(&c.Name)
		case "disable_parallel_tool_use":
			return d.Flag(&d.req.OneCall)
		}
		return d.Unsupported()
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
		return d.Refuse("needs a 'type' of auto, any, tool or none")
	}
	if (c.Name != "") != (c.Mode == api.ToolNamed) {
		return d.Refuse("must have a 'name' if its type is tool, and only then")
	}
	return nil
}

// checkToolChoice validates tool_choice against tools.
func (d *decoder) checkToolChoice() error {
	c := d.req.ToolChoice
	switch c.Mode {
	case api.ToolRequired:
		if len(d.req.Tools) == 0 {
			return fault.Param("tool_choice", "'tool_choice' of type any needs 'tools'")
		}
	case api.ToolNamed:
		for _, t := range d.req.Tools {
			if t.Name == c.Name {
				return nil
			}
		}
		return fault.Param("tool_choice", "'tool_choice' names a tool that is not among 'tools'")
	}
	return nil
}
