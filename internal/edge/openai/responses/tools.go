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

// tool is a function that the request offers. Pieces of JSON are those of the
// client, without the space between tokens; nil if not given.
type tool struct {
	name        string
	description *string
	parameters  []byte
	strict      *bool
}

// tool reads one element of tools.
func (d *decoder) tool(i int) error {
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
	if err := d.ReadObject(func(key string) error { return d.toolField(&t, key) }); err != nil {
		return err
	}
	if t.name == "" {
		return d.InvalidError("needs a 'name'")
	}
	d.tools = append(d.tools, t)
	return nil
}

func (d *decoder) toolField(t *tool, key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "type":
		return d.SkipValue()
	case "name":
		return d.toolName(&t.name)
	case "description":
		return d.optional(&t.description)
	case "parameters":
		return d.parameters(&t.parameters)
	case "strict":
		t.strict = new(bool)
		return d.ReadBoolInto(t.strict)
	case "async", "defer_loading":
		return d.only(false)
	case "allowed_callers":
		return d.ReadArray("an array of strings", func(int) error { return d.usual("direct") })
	case "output_schema":
		return d.InvalidError(notSupported)
	}
	return d.UnsupportedError()
}

// parameters reads the schema of a function's arguments, which are an object.
func (d *decoder) parameters(dst *[]byte) error {
	text, err := d.CaptureRaw(func() error {
		return d.ReadObject(func(key string) error {
			if key != "type" || d.Kind() != strictjson.StringKind {
				return d.SkipValue()
			}
			s, err := d.ReadString()
			if err == nil && s != "object" {
				return d.InvalidError("must be object: the arguments of a function are members of an object")
			}
			return err
		})
	})
	*dst = compact(text)
	return err
}

func (d *decoder) toolName(dst *string) error {
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
	// name is the tool that ToolNamed means, allowed the tools of allowed_tools; nil
	// if it is of another type.
	name    string
	allowed []string
}

// toolChoice reads a word, or an object that names tools.
func (d *decoder) toolChoice() error {
	c := &d.choice
	if d.Kind() == strictjson.StringKind {
		return d.toolMode(&c.mode, "none", "auto", "required")
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
		c.name, err = d.named()
		return err
	case kind == "allowed_tools":
		return d.allowedTools()
	}
	return d.InvalidError("is of type %.100q, which is not supported by this server: the types supported are \"function\" and \"allowed_tools\"", kind)
}

// toolMode reads one of the words ok.
func (d *decoder) toolMode(dst *api.ToolMode, ok ...string) error {
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

// named reads {"type":"function","name"}.
func (d *decoder) named() (name string, err error) {
	err = d.ReadObject(func(key string) error {
		switch key {
		case "type":
			return d.usual("function")
		case "name":
			return d.toolName(&name)
		}
		return d.UnsupportedError()
	})
	if err == nil && name == "" {
		return "", d.InvalidError("needs a 'name'")
	}
	return name, err
}

// allowedTools reads {"type":"allowed_tools","mode","tools"}.
func (d *decoder) allowedTools() error {
	c := &d.choice
	c.allowed = []string{}
	var mode bool
	err := d.ReadObject(func(key string) error {
		switch key {
		case "type":
			return d.SkipValue()
		case "mode":
			mode = true
			return d.toolMode(&c.mode, "auto", "required")
		case "tools":
			return d.ReadArray("an array of tools", func(i int) error {
				if i >= maxTools {
					return d.ParentInvalidError("must have at most %d tools", maxTools)
				}
				name, err := d.named()
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

// checkTools judges tools and tool_choice together and puts them into the request.
func (d *decoder) checkTools() error {
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
	d.offer()
	return nil
}

// offer puts the tools into the request: all, or the tools which allowed_tools names,
// the others being neither shown to the model nor possible.
func (d *decoder) offer() {
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
		q.ToolsJSON = t.appendChat(q.ToolsJSON)
	}
	if q.ToolsJSON != nil {
		q.ToolsJSON = append(q.ToolsJSON, ']')
	}
}

// appendChat appends the tool as chat requests have it. "strict", which this API's
// clients always send, is about decoding and no part of what a model reads.
func (t *tool) appendChat(dst []byte) []byte {
	dst = append(dst, `{"type":"function","function":{"name":`...)
	dst = strictjson.AppendString(dst, t.name)
	if t.description != nil {
		dst = append(dst, `,"description":`...)
		dst = strictjson.AppendString(dst, *t.description)
	}
	if t.parameters != nil {
		dst = append(dst, `,"parameters":`...)
		dst = append(dst, t.parameters...)
	}
	return append(dst, `}}`...)
}
