package responses

import (
	"slices"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const (
	maxTools    = 1536
	maxToolName = 96 // bytes
)

// tool is a function which the request offers. JSON is that of the client, without the space between tokens.
// A member which is not given is nil.
type tool struct {
	name        string
	description *string
	parameters  []byte
	strict      *bool
}

// readTools reads tools.
func (d *itemsDecoder) readTools() error { return d.ReadArray("an array of tools", d.readTool) }

// readTool reads one element of tools.
func (d *itemsDecoder) readTool(i int) error {
	if i >= maxTools {
		return d.ParentInvalidError("must have at most %d tools", maxTools)
	}
	kind, err := d.PeekType()
	switch {
	case err != nil:
		return err
	case kind == "":
		return d.InvalidError("needs a 'type'")
	case kind != "function":
		return d.InvalidError("is of type %.100q, which is not supported by this server: the tools supported are of type \"function\"", kind)
	}
	var t tool
	if err := d.ReadMembers(func(key string) error { return d.readToolField(&t, key) }); err != nil {
		return err
	}
	if t.name == "" {
		return d.InvalidError("needs a 'name'")
	}
	d.tools = append(d.tools, t)
	return nil
}

func (d *itemsDecoder) readToolField(t *tool, key string) error {
	switch key {
	case "type":
		return d.SkipValue()
	case "name":
		return d.readToolName(&t.name)
	case "description":
		return d.ReadOptional(&t.description)
	case "parameters":
		text, err := d.ReadParameters()
		t.parameters = compact(text)
		return err
	case "strict":
		t.strict = new(bool)
		return d.ReadBoolInto(t.strict)
	case "async", "defer_loading":
		return d.RequireFalse()
	case "allowed_callers":
		return d.ReadArray("an array of strings", func(int) error { return d.RequireString("direct") })
	case "output_schema":
		return d.RefuseUnsupported()
	}
	return d.UnsupportedError()
}

func (d *itemsDecoder) readToolName(dst *string) error {
	if err := d.ReadStringInto(dst); err != nil {
		return err
	}
	if !api.IsValidName(*dst, maxToolName, "_-.") {
		return d.InvalidError("must be 1 to %d letters, digits, underscores, dashes or dots", maxToolName)
	}
	return nil
}

// choice is tool_choice.
type choice struct {
	mode api.ToolMode
	// name is the tool of ToolNamed. allowed are the tools of allowed_tools; nil if the choice has another
	// type.
	name    string
	allowed []string
}

// readToolChoice reads a word, or an object which names tools.
func (d *itemsDecoder) readToolChoice() error {
	c := &d.choice
	if d.Kind() == strictjson.StringKind {
		return d.readToolMode(&c.mode, "none", "auto", "required")
	}
	if d.Kind() != strictjson.ObjectKind {
		return d.WrongTypeError("a string or an object")
	}
	kind, err := d.PeekType()
	switch {
	case err != nil:
		return err
	case kind == "":
		return d.InvalidError("needs a 'type'")
	case kind == "function":
		c.mode = api.ToolNamed
		c.name, err = d.readNamedTool()
		return err
	case kind == "allowed_tools":
		return d.readAllowedTools()
	}
	return d.InvalidError("is of type %.100q, which is not supported by this server: the types supported are \"function\" and \"allowed_tools\"", kind)
}

// readToolMode reads one of the words ok.
func (d *itemsDecoder) readToolMode(dst *api.ToolMode, ok ...string) error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	if !slices.Contains(ok, s) {
		return d.InvalidError("must be one of %q, or an object that names a tool", ok)
	}
	switch s {
	case "none":
		*dst = api.ToolNone
	case "auto":
		*dst = api.ToolAuto
	case "required":
		*dst = api.ToolRequired
	}
	return nil
}

// readNamedTool reads {"type":"function","name"}.
func (d *itemsDecoder) readNamedTool() (name string, err error) {
	err = d.ReadObject(func(key string) error {
		switch key {
		case "type":
			return d.RequireString("function")
		case "name":
			return d.readToolName(&name)
		}
		return d.UnsupportedError()
	})
	if err == nil && name == "" {
		return "", d.InvalidError("needs a 'name'")
	}
	return name, err
}

// readAllowedTools reads {"type":"allowed_tools","mode","tools"}.
func (d *itemsDecoder) readAllowedTools() error {
	c := &d.choice
	c.allowed = []string{}
	var mode bool
	err := d.ReadObject(func(key string) error {
		switch key {
		case "type":
			return d.SkipValue()
		case "mode":
			mode = true
			return d.readToolMode(&c.mode, "auto", "required")
		case "tools":
			return d.ReadArray("an array of tools", func(i int) error {
				if i >= maxTools {
					return d.ParentInvalidError("must have at most %d tools", maxTools)
				}
				name, err := d.readNamedTool()
				c.allowed = append(c.allowed, name)
				return err
			})
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case !mode:
		return d.InvalidError("needs a 'mode' of auto or required")
	case len(c.allowed) == 0:
		return d.InvalidError("needs 'tools', at least one")
	}
	return nil
}

// checkTools validates tools and tool_choice together and sets them in the request.
func (d *itemsDecoder) checkTools() error {
	q, c := d.req, &d.choice
	known := make(map[string]bool, len(d.tools))
	for _, t := range d.tools {
		if known[t.name] {
			return fault.InvalidParam("tools", "'tools' has two functions of the name '%s'", t.name)
		}
		known[t.name] = true
	}
	names := c.allowed
	if c.name != "" {
		names = []string{c.name}
	}
	for _, name := range names {
		if !known[name] {
			return fault.InvalidParam("tool_choice", "'tool_choice' names the function '%s', which is none of 'tools'", name)
		}
	}
	if c.mode == api.ToolRequired && len(d.tools) == 0 {
		return fault.InvalidParam("tool_choice", "'tool_choice' asks for a call, and there are no 'tools'")
	}
	q.ToolChoice = api.ToolChoice{Mode: c.mode, Name: c.name}
	q.echo.tools, q.echo.choice = d.tools, *c
	d.addTools()
	return nil
}

// addTools adds the tools to the request: all, or only the tools which allowed_tools names. The model does not see
// the others and cannot call them.
func (d *itemsDecoder) addTools() {
	q := d.req
	allowed := make(map[string]bool, len(d.choice.allowed))
	for _, name := range d.choice.allowed {
		allowed[name] = true
	}
	for _, t := range d.tools {
		if d.choice.allowed != nil && !allowed[t.name] {
			continue
		}
		q.Tools = append(q.Tools, api.Tool{Name: t.name, Parameters: t.parameters})
		if q.ToolsJSON == nil {
			q.ToolsJSON = []byte{'['}
		} else {
			q.ToolsJSON = append(q.ToolsJSON, ',')
		}
		// A model does not read "strict": it is about decoding.
		q.ToolsJSON = api.AppendTool(q.ToolsJSON, t.name, t.description, t.parameters)
	}
	if q.ToolsJSON != nil {
		q.ToolsJSON = append(q.ToolsJSON, ']')
	}
}
