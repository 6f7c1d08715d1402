package openai

import (
	"bytes"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const (
	maxTools    = 1536
	maxToolName = 96 // bytes; OpenAI's bound is 64, other servers' more
)

// toolDeclaration is an element of tools: its decoded members, and its text, a slice of the body. The text
// keeps unknown members, since templates print it.
type toolDeclaration struct {
	name       string
	parameters []byte
	text       []byte
}

// toolChoice is tool_choice. It is validated after the tools are known.
type toolChoice struct {
	api.ToolChoice
	subset  bool // the model may call only the tools in allowed
	allowed []string
}

// readTools reads tools.
func (d *requestDecoder) readTools() (err error) {
	byName := map[string]int{}
	d.toolsText, err = d.CaptureRaw(func() error {
		return d.ReadArray("an array of tools", func(i int) error {
			if i >= maxTools {
				return d.ParentInvalidError("must have at most %d tools", maxTools)
			}
			t, err := d.readTool()
			if err != nil {
				return err
			}
			if first, twice := byName[t.name]; twice {
				return d.InvalidError("has the function name of 'tools[%d]': names must differ", first)
			}
			byName[t.name] = i
			d.tools = append(d.tools, t)
			return nil
		})
	})
	return err
}

func (d *requestDecoder) readTool() (t toolDeclaration, err error) {
	var kind string
	t.text, err = d.CaptureRaw(func() error {
		return d.ReadObject(func(key string) error {
			switch key {
			case "type":
				return d.ReadStringInto(&kind)
			case "function":
				return d.readFunction(&t)
			}
			return d.SkipValue()
		})
	})
	switch {
	case err != nil:
		return t, err
	case kind == "custom":
		return t, d.InvalidError("is of type custom, which is not supported by this server: declare functions")
	case kind != "function":
		return t, d.InvalidError("needs a 'type', which must be function")
	case t.name == "":
		return t, d.InvalidError("needs a 'function' with a 'name'")
	}
	return t, nil
}

// readFunction reads the declaration of a function.
func (d *requestDecoder) readFunction(t *toolDeclaration) error {
	return d.ReadMembers(func(key string) error {
		switch key {
		case "name":
			return d.readToolName(&t.name)
		case "description":
			return d.IgnoreString()
		case "parameters":
			parameters, err := d.ReadParameters()
			t.parameters = parameters
			return err
		case "strict":
			return d.IgnoreBool()
		}
		return d.SkipValue()
	})
}

func (d *requestDecoder) readToolName(dst *string) error {
	if err := d.ReadStringInto(dst); err != nil {
		return err
	}
	if !api.IsValidName(*dst, maxToolName, "_-.") {
		return d.InvalidError("must have 1 to %d of the characters a-z, A-Z, 0-9, '_', '-' and '.'", maxToolName)
	}
	return nil
}

// readToolChoice reads tool_choice.
func (d *requestDecoder) readToolChoice() error {
	const want = "none, auto, required or an object that names a function"
	c := &d.choice
	if d.Kind() == strictjson.StringKind {
		s, err := d.ReadString()
		switch {
		case err != nil:
			return err
		case s == "none":
			c.Mode = api.ToolNone
		case s == "auto":
			c.Mode = api.ToolAuto
		case s == "required":
			c.Mode = api.ToolRequired
		default:
			return d.InvalidError("must be " + want)
		}
		return nil
	}
	if d.Kind() != strictjson.ObjectKind {
		return d.WrongTypeError(want)
	}
	var kind, name string
	err := d.ReadObject(func(key string) error {
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "function":
			return d.readFunctionName(&name)
		case "allowed_tools":
			return d.readAllowedTools()
		case "custom":
			return d.SkipValue()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case kind == "allowed_tools" && !c.subset:
		return d.InvalidError("needs 'allowed_tools'")
	case kind == "allowed_tools" && name == "":
		return nil
	case kind == "function" && name == "":
		return d.InvalidError("needs a 'function' with a 'name'")
	case kind == "function" && !c.subset:
		c.ToolChoice = api.ToolChoice{Mode: api.ToolNamed, Name: name}
		return nil
	case kind == "custom":
		return d.RefuseUnsupported()
	}
	return d.InvalidError("must have a 'type' of function or allowed_tools, and what goes with it")
}

// readFunctionName reads an object with the name of a function.
func (d *requestDecoder) readFunctionName(dst *string) error {
	return d.ReadObject(func(key string) error {
		if key == "name" {
			return d.ReadStringInto(dst)
		}
		return d.UnsupportedError()
	})
}

// readAllowedTools reads a choice restricted to some of the tools.
func (d *requestDecoder) readAllowedTools() error {
	var mode string
	err := d.ReadObject(func(key string) error {
		switch key {
		case "mode":
			return d.ReadStringInto(&mode)
		case "tools":
			return d.ReadArray("an array of tools", d.readAllowedTool)
		}
		return d.UnsupportedError()
	})
	c := &d.choice
	c.subset = true
	switch {
	case err != nil:
		return err
	case mode == "required":
		c.Mode = api.ToolRequired
	case mode == "auto":
		c.Mode = api.ToolAuto
	default:
		return d.InvalidError("needs a 'mode' of auto or required")
	}
	if len(c.allowed) == 0 {
		return d.InvalidError("needs 'tools' with at least one tool")
	}
	return nil
}

func (d *requestDecoder) readAllowedTool(i int) error {
	if i >= maxTools {
		return d.ParentInvalidError("must have at most %d tools", maxTools)
	}
	var kind, name string
	err := d.ReadObject(func(key string) error {
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "function":
			return d.readFunctionName(&name)
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case kind != "function" || name == "":
		return d.InvalidError("needs a 'type' of function and a 'function' with a 'name'")
	}
	d.choice.allowed = append(d.choice.allowed, name)
	return nil
}

// checkTools sets the tools and the tool choice of the request.
//
// It removes tools which the choice does not allow from the request: the model cannot call a tool of which
// its prompt says nothing. OpenAI keeps all tools in the prompt and restricts decoding, so that the prompt
// stays the same. Here a changed choice changes the prompt, which costs only the reuse of its cache.
func (d *requestDecoder) checkTools() error {
	q, c := d.Req, &d.choice
	if len(d.tools) == 0 {
		if c.subset || c.Mode == api.ToolRequired || c.Mode == api.ToolNamed {
			return fault.InvalidParam("tool_choice", "'tool_choice' is allowed only with 'tools', but for none and auto")
		}
		q.ToolChoice = c.ToolChoice
		return nil
	}
	if c.subset {
		if err := d.keepAllowedTools(); err != nil {
			return err
		}
	} else {
		q.ToolsJSON = bytes.Clone(d.toolsText)
	}
	found := c.Mode != api.ToolNamed
	q.Tools = make([]api.Tool, len(d.tools))
	for i, t := range d.tools {
		q.Tools[i] = api.Tool{Name: t.name, Parameters: bytes.Clone(t.parameters)}
		found = found || t.name == c.Name
	}
	if !found {
		return fault.InvalidParam("tool_choice.function.name", "'tool_choice.function.name' must be the name of one of 'tools'")
	}
	q.ToolChoice = c.ToolChoice
	return nil
}

// keepAllowedTools removes the tools which the choice does not allow.
func (d *requestDecoder) keepAllowedTools() error {
	const param = "tool_choice.allowed_tools.tools"
	allowed := make(map[string]bool, len(d.choice.allowed))
	for _, name := range d.choice.allowed {
		allowed[name] = true
	}
	kept := make([]toolDeclaration, 0, len(allowed))
	text := []byte{'['}
	for _, t := range d.tools {
		if !allowed[t.name] {
			continue
		}
		if len(kept) > 0 {
			text = append(text, ',')
		}
		text = append(text, t.text...)
		kept = append(kept, t)
	}
	if len(kept) < len(allowed) {
		return fault.InvalidParam(param, "'%s' must name functions of 'tools' only", param)
	}
	d.tools, d.Req.ToolsJSON = kept, append(text, ']')
	return nil
}
