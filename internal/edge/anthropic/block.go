package anthropic

import (
	"strings"

	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// readBlock reads one content block into t.
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
	case "image":
		var m *api.Media
		m, err = d.image()
		t.images = append(t.images, image{len(t.texts), m})
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

// refuseBlockType refuses a block of an unsupported type.
func (d *decoder) refuseType(kind string) error {
	return d.Refuse("is of type %.100q, which is not supported by this server: send texts and images", kind)
}

// readImage reads an image: base64 data with its type, or a URL.
func (d *decoder) image() (*api.Media, error) {
	if err := d.count.Count(d.Reader); err != nil {
		return nil, err
	}
	m := &api.Media{Kind: media.Image, Type: "image", Part: d.Param()}
	err := d.members(func(key string) (bool, error) {
		switch key {
		case "source":
			return true, d.source(m)
		case "uuid":
			return true, api.ReadMediaName(d.Reader, m)
		}
		return false, nil
	})
	if err == nil && m.URL == "" {
		err = d.Refuse("needs a 'source'")
	}
	return m, err
}

// readImageSource reads the source of an image.
func (d *decoder) source(m *api.Media) error {
	kind, err := d.TypeAhead()
	if err != nil {
		return err
	}
	if kind != "base64" && kind != "url" {
		return d.Refuse("is of type %.100q, which is not supported by this server: send a source of type base64 or url", kind)
	}
	var mime, data string
	err = d.members(func(key string) (bool, error) {
		switch {
		case kind == "url" && key == "url":
			return true, api.ReadURL(d.Reader, m)
		case kind == "base64" && key == "data":
			m.Param = d.Param()
			return true, d.Text(&data)
		case kind == "base64" && key == "media_type":
			if err := d.Text(&mime); err != nil {
				return true, err
			}
			if !api.IsName(mime, 64, "/+-.") {
				return true, d.Refuse("must be the type of an image, such as image/png")
			}
			return true, nil
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case kind == "url" && m.URL == "":
		return d.Refuse("needs a 'url'")
	case kind == "url":
		return nil
	case data == "":
		return d.Refuse("needs 'data': the image in base64")
	case mime == "":
		return d.Refuse("needs a 'media_type', such as image/png")
	}
	m.URL = api.DataURI(mime, data)
	return nil
}

// readBlockMembers reads the object of a block. read gets the keys which are not null, except type and
// cache_control, and reports whether it knows the key.
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

// readTextBlock reads a block with a text under the key name. The key beside is accepted and ignored.
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

// readToolUse reads an assistant's tool call.
func (d *decoder) toolUse(t *turn) error {
	var id, name string
	var input []byte // a slice of the body
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
		case "partial_json": // our own answers have it, for calls which were cut short
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

// readCaller reads the origin of a call, which must be the model itself and not a tool of another server.
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

// readToolResult reads a tool's result.
func (d *decoder) toolResult(t *turn) error {
	m := api.Message{Role: "tool"}
	failed := false
	err := d.members(func(key string) (bool, error) {
		switch key {
		case "tool_use_id":
			return true, d.Text(&m.ToolCallID)
		case "content":
			return true, d.resultContent(&m)
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
	case failed && m.Content == "" && m.Parts == nil:
		m.Content = "error"
	}
	m.Name = d.names[m.ToolCallID]
	t.results = append(t.results, m)
	return nil
}

// readResultContent reads the content of a tool result: a string or an array of text and image blocks.
func (d *decoder) resultContent(m *api.Message) error {
	const want = "a string or an array of content blocks"
	if d.Kind() == strictjson.StringKind {
		return d.Text(&m.Content)
	}
	var said turn
	err := d.Array(want, func(int) error {
		kind, err := d.TypeAhead()
		switch {
		case err != nil:
			return err
		case kind == "":
			return d.Refuse("needs a 'type'")
		case kind == "image":
			shown, err := d.image()
			said.images = append(said.images, image{len(said.texts), shown})
			return err
		case kind != "text":
			return d.refuseType(kind)
		}
		s, err := d.textBlock("text", "citations")
		said.texts = said.piece(said.texts, kind, s)
		said.last = kind
		return err
	})
	m.Content = strings.Join(said.texts, "")
	m.Parts = said.parts()
	return err
}
