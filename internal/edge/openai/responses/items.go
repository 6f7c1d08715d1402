package responses

import (
	"slices"
	"strings"

	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// maxItems bounds what a body of tiny items becomes: each is a message of a hundred
// bytes and more. Chat requests have the same bound.
const maxItems = 1 << 16

// items reads the input: a text of the user's, or an array of items.
func (d *decoder) items() error {
	if d.Kind() == strictjson.StringKind {
		s, err := d.ReadString()
		d.req.Messages = append(d.req.Messages, api.Message{Role: "user", Content: s})
		return err
	}
	err := d.ReadArray("a string or an array of items", d.item)
	d.endTurn()
	if err == nil && len(d.req.Messages) == 0 {
		return d.InvalidError("must have at least one item that says something")
	}
	return err
}

// item reads one item of the input.
func (d *decoder) item(i int) error {
	if i >= maxItems {
		return d.ParentInvalidError("must have at most %d items", maxItems)
	}
	kind, err := d.PeekType()
	if err != nil {
		return err
	}
	switch kind {
	case "", "message":
		return d.message()
	case "function_call":
		return d.functionCall()
	case "function_call_output":
		return d.functionOutput()
	case "reasoning":
		return d.thought()
	case "item_reference":
		return d.InvalidError("is a reference to an item, and this server keeps none: send the item itself")
	}
	return d.InvalidError("is of type %.100q, which is not supported by this server: the items supported are message, function_call, function_call_output and reasoning", kind)
}

// message reads an item of type message, in either of its forms: that of input,
// and that of output, which a client sends back.
func (d *decoder) message() error {
	var m api.Message
	var content bool
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.SkipValue()
		case "role":
			return d.role(&m.Role)
		case "content":
			content = true
			return d.content(&m)
		case "id", "status", "phase":
			_, err := d.ReadString()
			return err
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
		d.say(m.Content)
		return nil
	}
	d.endTurn()
	d.req.Messages = append(d.req.Messages, m)
	return nil
}

func (d *decoder) role(dst *string) error {
	if err := d.ReadStringInto(dst); err != nil {
		return err
	}
	switch *dst {
	case "system", "developer", "user", "assistant":
		return nil
	}
	return d.InvalidError("must be one of system, developer, user and assistant")
}

// functionCall reads what the assistant called. Namespaces and calls that are
// answered later are OpenAI's alone, and refused.
func (d *decoder) functionCall() error {
	var id, name, arguments *string
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case "call_id":
			return d.optional(&id)
		case "name":
			return d.optional(&name)
		case "arguments":
			return d.optional(&arguments)
		case "type", "caller":
			return d.SkipValue()
		case "id", "status":
			_, err := d.ReadString()
			return err
		case "async":
			return d.only(false)
		case "namespace":
			return d.InvalidError(notSupported)
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
	d.call(*id, *name, *arguments)
	return nil
}

// functionOutput reads what a function answered. A call_id that is left out is
// left out of the prompt.
func (d *decoder) functionOutput() error {
	m := api.Message{Role: "tool"}
	var output bool
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case "call_id":
			return d.ReadStringInto(&m.ToolCallID)
		case "name":
			return d.ReadStringInto(&m.Name)
		case "output":
			output = true
			return d.content(&m)
		case "type", "caller":
			return d.SkipValue()
		case "id", "status":
			_, err := d.ReadString()
			return err
		case "namespace":
			return d.InvalidError(notSupported)
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

// thought reads an item of type reasoning: its content, or its summary if that is
// all there is. One that is encrypted only was made by another server, and leaving
// it out would change the answer.
func (d *decoder) thought() error {
	var content, summary string
	var encrypted bool
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case "content":
			return d.thoughts(&content)
		case "summary":
			return d.thoughts(&summary)
		case "encrypted_content":
			s, err := d.ReadString()
			encrypted = s != ""
			return err
		case "type":
			return d.SkipValue()
		case "id", "status":
			_, err := d.ReadString()
			return err
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case content != "":
		d.think(content)
	case summary != "":
		d.think(summary)
	case encrypted:
		return d.InvalidError("has nothing but encrypted reasoning, which this server cannot read: leave it out")
	}
	return nil
}

// content reads a string or an array of parts into the content of m.
func (d *decoder) content(m *api.Message) error {
	switch d.Kind() {
	case strictjson.StringKind:
		return d.ReadStringInto(&m.Content)
	case strictjson.ArrayKind:
		return d.parts(m)
	}
	return d.WrongTypeError("a string or an array of content parts")
}

// thoughts reads an array of parts that are texts.
func (d *decoder) thoughts(dst *string) error {
	var m api.Message
	err := d.parts(&m)
	if err == nil && m.HasMedia() {
		return d.InvalidError("shows media, and reasoning is text")
	}
	*dst = m.Content
	return err
}

// parts reads an array of parts; their texts are joined by newlines.
func (d *decoder) parts(m *api.Message) error {
	d.pieces = d.pieces[:0]
	err := d.ReadArray("an array of content parts", func(int) error { return d.part() })
	var text strings.Builder
	texts := 0
	for i := range d.pieces {
		if d.pieces[i].Media != nil {
			continue
		}
		if texts++; texts > 1 {
			text.WriteByte('\n')
		}
		text.WriteString(d.pieces[i].Text)
	}
	m.Content = text.String()
	if len(d.pieces) > 0 {
		m.Parts = slices.Clone(d.pieces)
	}
	return err
}

// part reads one part. What a client sends back of an answer beside its text is
// not part of the prompt.
func (d *decoder) part() error {
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
		return d.shown(kind, media.Image, "image_url")
	case "input_audio":
		return d.shown(kind, media.Audio, "input_audio")
	case "input_file", "input_video", "computer_screenshot":
		return d.InvalidError("is of type %.100q, which is not supported by this server: send texts, images and sounds", kind)
	case "":
		return d.InvalidError("needs a 'type'")
	default:
		return d.InvalidError("has an unknown type: the parts supported are of type \"input_text\", \"input_image\", \"input_audio\", \"output_text\" and \"refusal\"")
	}
	var text string
	var given bool
	err = d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
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
	d.pieces = append(d.pieces, api.Part{Text: text})
	return err
}

// shown reads a part that shows a media object, which is under field.
func (d *decoder) shown(kind string, shows media.Kind, field string) error {
	if err := d.count.CountObject(d.Reader); err != nil {
		return err
	}
	m := &api.Media{Kind: shows, Type: kind, Part: d.ParamPath()}
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case field:
			if shows == media.Audio {
				return api.ReadAudio(d.Reader, m)
			}
			return api.ReadMediaLocation(d.Reader, m)
		case "detail":
			return api.ReadImageDetail(d.Reader)
		case "uuid":
			return api.ReadMediaName(d.Reader, m)
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
	d.pieces = append(d.pieces, api.Part{Media: m})
	return err
}
