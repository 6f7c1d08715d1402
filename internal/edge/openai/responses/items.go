package responses

import (
	"slices"

	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// maxItems bounds the memory of a body of tiny items: each becomes a message of a hundred bytes or more. Chat
// requests have the same bound.
const maxItems = 1 << 16

// readInput reads input: a text of the user, or an array of items.
func (d *itemsDecoder) readInput() error {
	d.input = true
	if d.Kind() == strictjson.StringKind {
		s, err := d.ReadString()
		d.req.Messages = append(d.req.Messages, api.Message{Role: "user", Content: s})
		return err
	}
	err := d.ReadArray("a string or an array of items", d.readItem)
	d.endTurn()
	if err == nil && len(d.req.Messages) == 0 {
		return d.InvalidError("must have at least one item that says something")
	}
	return err
}

// readItem reads one item of the input.
func (d *itemsDecoder) readItem(i int) error {
	if i >= maxItems {
		return d.ParentInvalidError("must have at most %d items", maxItems)
	}
	kind, err := d.PeekType()
	if err != nil {
		return err
	}
	switch kind {
	case "", "message":
		return d.readMessage()
	case "function_call":
		return d.readFunctionCall()
	case "function_call_output":
		return d.readFunctionOutput()
	case "reasoning":
		return d.readReasoning()
	case "item_reference":
		return d.InvalidError("is a reference to an item, and this server keeps none: send the item itself")
	}
	return d.InvalidError("is of type %.100q, which is not supported by this server: the items supported are message, function_call, function_call_output and reasoning", kind)
}

// readMessage reads an item of type message. It has two forms: that of input, and that of output, which
// clients send back.
func (d *itemsDecoder) readMessage() error {
	var m api.Message
	var content bool
	err := d.ReadMembers(func(key string) (err error) {
		switch key {
		case "type":
			return d.SkipValue()
		case "role":
			m.Role, err = d.ReadWord("system", "developer", "user", "assistant")
			return err
		case "content":
			content = true
			return d.readContent(&m)
		case "id", "status", "phase":
			return d.IgnoreString()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case m.Role == "" && !content:
		return d.InvalidError("needs a 'type', or 'role' and 'content': a reference to a kept item is not supported")
	case m.Role == "":
		return d.InvalidError("needs a 'role'")
	case !content:
		return d.InvalidError("needs 'content'")
	case m.Role == "assistant" && m.HasMedia():
		return d.InvalidError("shows media, which an assistant's message cannot: put them into one of the user")
	case m.Role == "assistant":
		d.addText(m.Content)
		return nil
	}
	d.endTurn()
	d.req.Messages = append(d.req.Messages, m)
	return nil
}

// readFunctionCall reads a call of the assistant. It refuses namespaces and asynchronous calls, which only
// OpenAI has.
func (d *itemsDecoder) readFunctionCall() error {
	var id, name, arguments *string
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "call_id":
			return d.ReadOptional(&id)
		case "name":
			return d.ReadOptional(&name)
		case "arguments":
			return d.ReadOptional(&arguments)
		case "type", "caller":
			return d.SkipValue()
		case "id", "status":
			return d.IgnoreString()
		case "async":
			return d.RequireFalse()
		case "namespace":
			return d.RefuseUnsupported()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case id == nil || *id == "":
		return d.InvalidError("needs a 'call_id'")
	case name == nil || *name == "":
		return d.InvalidError("needs a 'name'")
	case arguments == nil:
		return d.InvalidError("needs 'arguments', which are JSON in a string")
	}
	d.addCall(*id, *name, *arguments)
	return nil
}

// readFunctionOutput reads the result of a function. If call_id is missing, the prompt has none either.
func (d *itemsDecoder) readFunctionOutput() error {
	m := api.Message{Role: "tool"}
	var output bool
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "call_id":
			return d.ReadStringInto(&m.ToolCallID)
		case "name":
			return d.ReadStringInto(&m.Name)
		case "output":
			output = true
			return d.readContent(&m)
		case "type", "caller":
			return d.SkipValue()
		case "id", "status":
			return d.IgnoreString()
		case "namespace":
			return d.RefuseUnsupported()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case !output:
		return d.InvalidError("needs 'output'")
	}
	d.endTurn()
	d.req.Messages = append(d.req.Messages, m)
	return nil
}

// readReasoning reads an item of type reasoning: its content, or its summary if it has no content. It refuses
// an item which is only encrypted: another server made it, and leaving it out would change the answer.
func (d *itemsDecoder) readReasoning() error {
	var content, summary string
	var encrypted bool
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "content":
			return d.readReasoningText(&content)
		case "summary":
			return d.readReasoningText(&summary)
		case "encrypted_content":
			s, err := d.ReadString()
			encrypted = s != ""
			return err
		case "type":
			return d.SkipValue()
		case "id", "status":
			return d.IgnoreString()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case content != "":
		d.addReasoning(content)
	case summary != "":
		d.addReasoning(summary)
	case encrypted:
		return d.InvalidError("has nothing but encrypted reasoning, which this server cannot read: leave it out")
	}
	return nil
}

// readContent reads a string or an array of parts into the content of m.
func (d *itemsDecoder) readContent(m *api.Message) error {
	switch d.Kind() {
	case strictjson.StringKind:
		return d.ReadStringInto(&m.Content)
	case strictjson.ArrayKind:
		return d.readParts(m)
	}
	return d.WrongTypeError("a string or an array of content parts")
}

// readReasoningText reads an array of text parts.
func (d *itemsDecoder) readReasoningText(dst *string) error {
	var m api.Message
	err := d.readParts(&m)
	if err == nil && m.HasMedia() {
		return d.InvalidError("shows media, and reasoning is text")
	}
	*dst = m.Content
	return err
}

// readParts reads an array of parts; their texts are joined by newlines.
func (d *itemsDecoder) readParts(m *api.Message) error {
	d.parts = d.parts[:0]
	err := d.ReadArray("an array of content parts", func(int) error { return d.readPart() })
	m.Content = api.JoinTexts(d.parts)
	if len(d.parts) > 0 {
		m.Parts = slices.Clone(d.parts)
	}
	return err
}

// readPart reads one part. Of a part of an answer, only the text is part of the prompt.
func (d *itemsDecoder) readPart() error {
	kind, err := d.PeekType()
	if err != nil {
		return err
	}
	field := "text"
	switch kind {
	case "input_text", "output_text", "text", "reasoning_text", "summary_text":
	case "refusal":
		field = "refusal"
	case "input_image":
		return d.readMedia(kind, media.Image, "image_url")
	case "input_audio":
		return d.readMedia(kind, media.Audio, "input_audio")
	case "input_file", "input_video", "computer_screenshot":
		return d.InvalidError("is of type %.100q, which is not supported by this server: send texts, images and sounds", kind)
	case "":
		return d.InvalidError("needs a 'type'")
	default:
		return d.InvalidError("has an unknown type: the parts supported are of type \"input_text\", \"input_image\", \"input_audio\", \"output_text\" and \"refusal\"")
	}
	var text string
	var given bool
	err = d.ReadMembers(func(key string) error {
		switch key {
		case field:
			given = true
			return d.ReadStringInto(&text)
		case "type", "annotations", "logprobs", "prompt_cache_breakpoint", "cache_control":
			return d.SkipValue()
		}
		return d.UnsupportedError()
	})
	if err == nil && !given {
		return d.InvalidError("needs '%s'", field)
	}
	d.parts = append(d.parts, api.Part{Text: text})
	return err
}

// readMedia reads a part with a media object, the value of field.
func (d *itemsDecoder) readMedia(kind string, shows media.Kind, field string) error {
	if err := d.count.CountObject(&d.Reader); err != nil {
		return err
	}
	m := &api.Media{Kind: shows, Type: kind, Part: d.ParamPath()}
	err := d.ReadMembers(func(key string) error {
		switch key {
		case field:
			if shows == media.Audio {
				return api.ReadAudio(&d.Reader, m)
			}
			return api.ReadMediaLocation(&d.Reader, m)
		case "detail":
			return api.ReadImageDetail(&d.Reader)
		case "uuid":
			return api.ReadMediaName(&d.Reader, m)
		case "file_id":
			return d.InvalidError("names a file, and this server keeps none: send the image itself")
		case "type", "prompt_cache_breakpoint", "cache_control":
			return d.SkipValue()
		}
		return d.UnsupportedError()
	})
	if err == nil && m.URL == "" {
		return d.InvalidError("needs '%s'", field)
	}
	d.parts = append(d.parts, api.Part{Media: m})
	return err
}

// turn is a turn of the assistant which is being assembled. The items of one answer (reasoning, text and
// calls) form one message of a conversation, and the results of calls follow the message with the calls, which
// templates rely on. So a turn consists of reasoning, a text and calls. If it has calls, it lasts until an item
// of another role.
type turn struct {
	open, said bool
	reasoning  []byte
	content    []byte
	calls      []byte // a JSON array without its last bracket; nil if none
}

// addText adds a text. It begins a new turn if the open one is complete.
func (d *itemsDecoder) addText(text string) {
	d.beginTurn()
	d.turn.said = true
	d.turn.content = appendLine(d.turn.content, text)
}

// addReasoning adds reasoning, which precedes the text of its turn.
func (d *itemsDecoder) addReasoning(text string) {
	d.beginTurn()
	d.turn.reasoning = appendLine(d.turn.reasoning, text)
}

// beginTurn opens a turn if none is open, or if the open one is complete: it has a text and no calls, whose
// results would follow.
func (d *itemsDecoder) beginTurn() {
	if d.turn.said && d.turn.calls == nil {
		d.endTurn()
	}
	d.turn.open = true
}

// addCall adds a call in the form of chat requests.
func (d *itemsDecoder) addCall(id, name, arguments string) {
	t := &d.turn
	t.open = true
	if t.calls == nil {
		t.calls = []byte{'['}
	} else {
		t.calls = append(t.calls, ',')
	}
	t.calls = api.AppendCall(t.calls, id, name, arguments)
}

// endTurn adds the turn to the conversation if one is open.
func (d *itemsDecoder) endTurn() {
	t := &d.turn
	if !t.open {
		return
	}
	m := api.Message{Role: "assistant", Content: string(t.content), Reasoning: string(t.reasoning)}
	if t.calls != nil {
		m.ToolCalls = append(t.calls, ']')
		m.NoContent = m.Content == ""
	}
	d.req.Messages = append(d.req.Messages, m)
	d.turn = turn{}
}

// appendLine appends text, after a newline if dst is not empty.
func appendLine(dst []byte, text string) []byte {
	if len(dst) > 0 && text != "" {
		dst = append(dst, '\n')
	}
	return append(dst, text...)
}
