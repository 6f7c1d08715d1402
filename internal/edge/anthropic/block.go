package anthropic

import (
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// block reads one content block into t.
func (d *decoder) block(t *turn) error {
	kind, err := d.TypeAhead()
	if err != nil {
		return err
	}
	var s string
	switch kind {
	case "text":
		s, err = d.textBlock("text", "citations")
		t.texts = t.piece(t.texts, kind, s)
	case "thinking":
		s, err = d.textBlock("thinking", "signature")
		t.thoughts = t.piece(t.thoughts, kind, s)
	case "redacted_thinking":
		t.sealed = true
		err = d.members(func(key string) (bool, error) { return key == "data", d.Skip() })
	case "tool_use":
		err = d.toolUse(t)
	case "tool_result":
		err = d.toolResult(t)
	case "":
		return d.Refuse("needs a 'type'")
	default:
		return d.refuseType(kind)
	}
	t.last = kind
	return err
}

// refuseType refuses a block of a type that is not taken.
func (d *decoder) refuseType(kind string) error {
	return d.Refuse("is of type %.100q, which is not supported by this server: send text only", kind)
}

// members reads the object of a block. read takes the keys of its type that are
// not null, and says whether there is such a key.
func (d *decoder) members(read func(key string) (known bool, err error)) error {
	return d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		if key == "type" || key == "cache_control" {
			return d.Skip()
		}
		known, err := read(key)
		if !known {
			return d.Unsupported()
		}
		return err
	})
}

// textBlock reads a block that has a text under a key, and beside it what is not
// part of a prompt.
func (d *decoder) textBlock(name, beside string) (text string, err error) {
	given := false
	err = d.members(func(key string) (bool, error) {
		switch key {
		case name:
			given = true
			return true, d.Text(&text)
		case beside:
			return true, d.Skip()
		}
		return false, nil
	})
	if err == nil && !given {
		err = d.Refuse("needs '%s'", name)
	}
	return text, err
}

// toolUse reads an assistant's call.
func (d *decoder) toolUse(t *turn) error {
	var id, name string
	var input []byte // a part of the body
	err := d.members(func(key string) (bool, error) {
		switch key {
		case "id":
			return true, d.Text(&id)
		case "name":
			return true, d.Text(&name)
		case "input":
			if d.Kind() != strictjson.ObjectKind {
				return true, d.Expected("an object")
			}
			raw, err := d.Raw()
			input = raw
			return true, err
		case "caller":
			return true, d.caller()
		case "toolset_name":
			return true, d.notSupported()
		case "partial_json": // of our own answers, for calls that were cut short
			return true, d.Skip()
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case id == "":
		return d.Refuse("needs an 'id'")
	case name == "":
		return d.Refuse("needs a 'name'")
	case input == nil:
		return d.Refuse("needs 'input'")
	}
	c := append(t.calls, `,{"id":`...)
	c = strictjson.AppendString(c, id)
	c = append(c, `,"type":"function","function":{"name":`...)
	c = strictjson.AppendString(c, name)
	c = append(c, `,"arguments":`...)
	c = strictjson.AppendString(c, input)
	t.calls = append(c, `}}`...)
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[id] = name
	return nil
}

// caller reads who made a call: the model itself, or a tool that another server
// ran.
func (d *decoder) caller() error {
	kind, err := d.TypeAhead()
	if err == nil && kind != "direct" {
		return d.Refuse("is of type %.100q, which is not supported by this server: send the calls that the model made itself", kind)
	}
	if err != nil {
		return err
	}
	return d.Skip()
}

// toolResult reads a tool's answer.
func (d *decoder) toolResult(t *turn) error {
	m := api.Message{Role: "tool"}
	failed := false
	err := d.members(func(key string) (bool, error) {
		switch key {
		case "tool_use_id":
			return true, d.Text(&m.ToolCallID)
		case "content":
			return true, d.resultContent(&m.Content)
		case "is_error":
			return true, d.Flag(&failed)
		case "toolset_name":
			return true, d.notSupported()
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case m.ToolCallID == "":
		return d.Refuse("needs a 'tool_use_id'")
	case failed && m.Content == "":
		m.Content = "error"
	}
	m.Name = d.names[m.ToolCallID]
	t.results = append(t.results, m)
	return nil
}

// resultContent reads what a tool said: a string or an array of blocks of text.
func (d *decoder) resultContent(dst *string) error {
	const want = "a string or an array of content blocks"
	if d.Kind() == strictjson.StringKind {
		return d.Text(dst)
	}
	var text []byte
	err := d.Array(want, func(i int) error {
		kind, err := d.TypeAhead()
		switch {
		case err != nil:
			return err
		case kind == "":
			return d.Refuse("needs a 'type'")
		case kind != "text":
			return d.refuseType(kind)
		}
		if i > 0 {
			text = append(text, '\n')
		}
		s, err := d.textBlock("text", "citations")
		text = append(text, s...)
		return err
	})
	*dst = string(text)
	return err
}
