package anthropic

import (
	"strings"

	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// readBlock reads one content block into t.
func (d *requestDecoder) readBlock(t *chatTurn) error {
	kind, err := d.PeekType()
	if err != nil {
		return err
	}
	var s string
	switch kind {
	case "text":
		s, err = d.readTextBlock("text", "citations")
		t.texts = t.appendPiece(t.texts, kind, s)
	case "thinking":
		s, err = d.readTextBlock("thinking", "signature")
		t.thoughts = t.appendPiece(t.thoughts, kind, s)
	case "redacted_thinking":
		t.hasRedacted = true
		err = d.readBlockMembers(func(key string) (bool, error) { return key == "data", d.SkipValue() })
	case "image":
		var m *api.Media
		m, err = d.readImage()
		t.images = append(t.images, turnImage{len(t.texts), m})
	case "tool_use":
		err = d.readToolUse(t)
	case "tool_result":
		err = d.readToolResult(t)
	case "":
		return d.InvalidError("needs a 'type'")
	default:
		return d.refuseBlockType(kind)
	}
	t.lastType = kind
	return err
}

// refuseBlockType refuses a block of an unsupported type.
func (d *requestDecoder) refuseBlockType(kind string) error {
	return d.InvalidError("is of type %.100q, which is not supported by this server: send texts and images", kind)
}

// readImage reads an image: base64 data with its type, or a URL.
func (d *requestDecoder) readImage() (*api.Media, error) {
	if err := d.mediaCount.CountObject(&d.Reader); err != nil {
		return nil, err
	}
	m := &api.Media{Kind: media.Image, Type: "image", Part: d.ParamPath()}
	err := d.readBlockMembers(func(key string) (bool, error) {
		switch key {
		case "source":
			return true, d.readImageSource(m)
		case "uuid":
			return true, api.ReadMediaName(&d.Reader, m)
		}
		return false, nil
	})
	if err == nil && m.URL == "" {
		err = d.InvalidError("needs a 'source'")
	}
	return m, err
}

// readImageSource reads the source of an image.
func (d *requestDecoder) readImageSource(m *api.Media) error {
	kind, err := d.PeekType()
	if err != nil {
		return err
	}
	if kind != "base64" && kind != "url" {
		return d.InvalidError("is of type %.100q, which is not supported by this server: send a source of type base64 or url", kind)
	}
	var mime, data string
	err = d.readBlockMembers(func(key string) (bool, error) {
		switch {
		case kind == "url" && key == "url":
			return true, api.ReadURL(&d.Reader, m)
		case kind == "base64" && key == "data":
			m.Param = d.ParamPath()
			return true, d.ReadStringInto(&data)
		case kind == "base64" && key == "media_type":
			if err := d.ReadStringInto(&mime); err != nil {
				return true, err
			}
			if !api.IsValidName(mime, 64, "/+-.") {
				return true, d.InvalidError("must be the type of an image, such as image/png")
			}
			return true, nil
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case kind == "url" && m.URL == "":
		return d.InvalidError("needs a 'url'")
	case kind == "url":
		return nil
	case data == "":
		return d.InvalidError("needs 'data': the image in base64")
	case mime == "":
		return d.InvalidError("needs a 'media_type', such as image/png")
	}
	m.URL = api.DataURI(mime, data)
	return nil
}

// readBlockMembers reads the object of a block. read gets the keys which are not null, except type and
// cache_control, and reports whether it knows the key.
func (d *requestDecoder) readBlockMembers(read func(key string) (known bool, err error)) error {
	return d.ReadMembers(func(key string) error {
		if key == "type" || key == "cache_control" {
			return d.SkipValue()
		}
		known, err := read(key)
		if !known {
			return d.UnsupportedError()
		}
		return err
	})
}

// readTextBlock reads a block with a text under the key name. The key beside is accepted and ignored.
func (d *requestDecoder) readTextBlock(name, beside string) (text string, err error) {
	given := false
	err = d.readBlockMembers(func(key string) (bool, error) {
		switch key {
		case name:
			given = true
			return true, d.ReadStringInto(&text)
		case beside:
			return true, d.SkipValue()
		}
		return false, nil
	})
	if err == nil && !given {
		err = d.InvalidError("needs '%s'", name)
	}
	return text, err
}

// readToolUse reads an assistant's tool call.
func (d *requestDecoder) readToolUse(t *chatTurn) error {
	var id, name string
	var input []byte // a slice of the body
	err := d.readBlockMembers(func(key string) (known bool, err error) {
		switch key {
		case "id":
			return true, d.ReadStringInto(&id)
		case "name":
			return true, d.ReadStringInto(&name)
		case "input":
			input, err = d.ReadRawObject()
			return true, err
		case "caller":
			return true, d.readCaller()
		case "toolset_name":
			return true, d.RefuseUnsupported()
		case "partial_json": // our own answers have it, for calls which were cut short
			return true, d.SkipValue()
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case id == "":
		return d.InvalidError("needs an 'id'")
	case name == "":
		return d.InvalidError("needs a 'name'")
	case input == nil:
		return d.InvalidError("needs 'input'")
	}
	t.calls = api.AppendCall(append(t.calls, ','), id, name, input)
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[id] = name
	return nil
}

// readCaller reads the origin of a call, which must be the model itself and not a tool of another server.
func (d *requestDecoder) readCaller() error {
	kind, err := d.PeekType()
	if err == nil && kind != "direct" {
		return d.InvalidError("is of type %.100q, which is not supported by this server: send the calls that the model made itself", kind)
	}
	if err != nil {
		return err
	}
	return d.SkipValue()
}

// readToolResult reads a tool's result.
func (d *requestDecoder) readToolResult(t *chatTurn) error {
	m := api.Message{Role: "tool"}
	failed := false
	err := d.readBlockMembers(func(key string) (bool, error) {
		switch key {
		case "tool_use_id":
			return true, d.ReadStringInto(&m.ToolCallID)
		case "content":
			return true, d.readResultContent(&m)
		case "is_error":
			return true, d.ReadBoolInto(&failed)
		case "toolset_name":
			return true, d.RefuseUnsupported()
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case m.ToolCallID == "":
		return d.InvalidError("needs a 'tool_use_id'")
	case failed && m.Content == "" && m.Parts == nil:
		m.Content = "error"
	}
	m.Name = d.names[m.ToolCallID]
	t.results = append(t.results, m)
	return nil
}

// readResultContent reads the content of a tool result: a string or an array of text and image blocks.
func (d *requestDecoder) readResultContent(m *api.Message) error {
	const want = "a string or an array of content blocks"
	if d.Kind() == strictjson.StringKind {
		return d.ReadStringInto(&m.Content)
	}
	var said chatTurn
	err := d.ReadArray(want, func(int) error {
		kind, err := d.PeekType()
		switch {
		case err != nil:
			return err
		case kind == "":
			return d.InvalidError("needs a 'type'")
		case kind == "image":
			shown, err := d.readImage()
			said.images = append(said.images, turnImage{len(said.texts), shown})
			return err
		case kind != "text":
			return d.refuseBlockType(kind)
		}
		s, err := d.readTextBlock("text", "citations")
		said.texts = said.appendPiece(said.texts, kind, s)
		said.lastType = kind
		return err
	})
	m.Content = strings.Join(said.texts, "")
	m.Parts = said.contentParts()
	return err
}
