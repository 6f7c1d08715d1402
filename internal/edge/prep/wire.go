package prep

import (
	"slices"

	"penstock/core/media"
	"penstock/internal/strictjson"
)

// A conversation travels to an engine in the form of a chat request (docs/format/engine.md), which other
// engines take nearly as it is. Only this file writes and reads it. JSON which a client wrote (parts, calls,
// tools, arguments) is copied byte by byte, since templates print it.

// AppendChat appends c as a JSON object to dst. The JSON fields of c must be JSON of the kind which their
// comments name, and its texts UTF-8; DecodeChat then returns an equal conversation.
func AppendChat(dst []byte, c *Chat) []byte {
	dst = append(dst, `{"messages":[`...)
	for i := range c.Messages {
		dst = strictjson.AppendComma(dst, i)
		dst = appendMessage(dst, &c.Messages[i])
	}
	dst = append(dst, ']')
	dst = appendRaw(dst, `,"tools":`, c.Tools)
	dst = appendRaw(dst, `,"chat_template_kwargs":`, c.Args)
	dst = appendFlag(dst, `,"add_generation_prompt":`, c.AddGenerationPrompt)
	dst = appendFlag(dst, `,"continue_final_message":`, c.ContinueFinal)
	return append(dst, '}')
}

// AppendChatWithMedia is AppendChat for a peer which resolves the media: it adds Media, Namespace and
// ProcessorArgs.
func AppendChatWithMedia(dst []byte, c *Chat) []byte {
	dst = AppendChat(dst, c)
	dst = append(dst[:len(dst)-1], `,"media":[`...)
	for i := range c.Media {
		dst = strictjson.AppendComma(dst, i)
		dst = appendMediaObject(dst, &c.Media[i])
	}
	dst = append(dst, ']')
	dst = appendText(dst, `,"media_namespace":`, c.Namespace)
	dst = appendFlag(dst, `,"media_processor_args":`, c.ProcessorArgs)
	return append(dst, '}')
}

func appendMediaObject(dst []byte, m *Media) []byte {
	dst = strictjson.AppendMember(dst, `{"kind":`, m.Kind.String())
	dst = appendText(dst, `,"url":`, m.URL)
	dst = appendText(dst, `,"uuid":`, m.Name)
	dst = appendText(dst, `,"part":`, m.Part)
	dst = appendText(dst, `,"param":`, m.Param)
	return append(dst, '}')
}

func appendMessage(dst []byte, m *Message) []byte {
	dst = strictjson.AppendMember(dst, `{"role":`, m.Role)
	dst = appendText(dst, `,"name":`, m.Name)
	dst = append(dst, `,"content":`...)
	switch {
	case len(m.Parts) > 0:
		dst = append(dst, m.Parts...)
	case m.NoContent:
		dst = append(dst, "null"...)
	default:
		dst = strictjson.AppendString(dst, m.Content)
	}
	dst = appendText(dst, `,"reasoning_content":`, m.Reasoning)
	dst = appendRaw(dst, `,"tool_calls":`, m.ToolCalls)
	dst = appendText(dst, `,"tool_call_id":`, m.ToolCallID)
	return append(dst, '}')
}

// appendRaw appends a key and JSON, or nothing if the JSON is empty.
func appendRaw(dst []byte, key string, raw []byte) []byte {
	if len(raw) == 0 {
		return dst
	}
	return append(append(dst, key...), raw...)
}

// appendText appends a key and a text, or nothing if it is empty.
func appendText(dst []byte, key, text string) []byte {
	if text == "" {
		return dst
	}
	return strictjson.AppendString(append(dst, key...), text)
}

func appendFlag(dst []byte, key string, v bool) []byte {
	if dst = append(dst, key...); v {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// DecodeChat reads the output of [AppendChat] or [AppendChatWithMedia]. It keeps nothing of b. It refuses
// unknown fields: without them the prompt would be a different one. The error is a *fault.Error of code
// Invalid which names the field. The template decides whether the conversation is valid.
func DecodeChat(b []byte) (*Chat, error) {
	r, err := strictjson.NewReader(b)
	if err != nil {
		return nil, err
	}
	d := chatDecoder{Reader: r, chat: &Chat{AddGenerationPrompt: true}} // the default of chat requests
	if err := r.ReadObject(d.decodeField); err != nil {
		return nil, err
	}
	if err := r.CheckEnd(); err != nil {
		return nil, err
	}
	return d.chat, nil
}

type chatDecoder struct {
	*strictjson.Reader
	chat *Chat
}

// decodeField reads the value of one key of a conversation.
func (d *chatDecoder) decodeField(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "messages":
		return d.ReadArray("an array of messages", d.decodeMessage)
	case "tools":
		return d.copyRaw(&d.chat.Tools, strictjson.ArrayKind)
	case "chat_template_kwargs":
		return d.copyRaw(&d.chat.Args, strictjson.ObjectKind)
	case "add_generation_prompt":
		return d.ReadBoolInto(&d.chat.AddGenerationPrompt)
	case "continue_final_message":
		return d.ReadBoolInto(&d.chat.ContinueFinal)
	case "media":
		return d.ReadArray("an array of media objects", d.decodeMedia)
	case "media_namespace":
		return d.ReadStringInto(&d.chat.Namespace)
	case "media_processor_args":
		return d.ReadBoolInto(&d.chat.ProcessorArgs)
	}
	return d.UnsupportedError()
}

// decodeMedia reads one element of media.
func (d *chatDecoder) decodeMedia(int) error {
	var m Media
	err := d.ReadObject(func(key string) error {
		switch key {
		case "kind":
			return d.decodeMediaKind(&m.Kind)
		case "url":
			return d.ReadStringInto(&m.URL)
		case "uuid":
			return d.ReadStringInto(&m.Name)
		case "part":
			return d.ReadStringInto(&m.Part)
		case "param":
			return d.ReadStringInto(&m.Param)
		}
		return d.UnsupportedError()
	})
	if err == nil && m.Kind == 0 {
		err = d.InvalidError("must have a 'kind'")
	}
	d.chat.Media = append(d.chat.Media, m)
	return err
}

// decodeMediaKind reads the name of a kind of media.
func (d *chatDecoder) decodeMediaKind(dst *media.Kind) error {
	var name string
	if err := d.ReadStringInto(&name); err != nil {
		return err
	}
	for _, k := range MediaKinds() {
		if k.String() == name {
			*dst = k
			return nil
		}
	}
	return d.InvalidError("must be a kind of media, not %.100q", name)
}

// decodeMessage reads one element of messages.
func (d *chatDecoder) decodeMessage(int) error {
	m := Message{NoContent: true}
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "role":
			return d.ReadStringInto(&m.Role)
		case "name":
			return d.ReadStringInto(&m.Name)
		case "content":
			m.NoContent = false
			if d.Kind() == strictjson.StringKind {
				return d.ReadStringInto(&m.Content)
			}
			return d.copyRaw(&m.Parts, strictjson.ArrayKind)
		case "reasoning_content":
			return d.ReadStringInto(&m.Reasoning)
		case "tool_calls":
			return d.copyRaw(&m.ToolCalls, strictjson.ArrayKind)
		case "tool_call_id":
			return d.ReadStringInto(&m.ToolCallID)
		}
		return d.UnsupportedError()
	})
	d.chat.Messages = append(d.chat.Messages, m)
	return err
}

// copyRaw reads JSON of one kind and keeps a copy of its text.
func (d *chatDecoder) copyRaw(dst *[]byte, kind strictjson.Kind) error {
	if d.Kind() != kind {
		return d.WrongTypeError(string(kind))
	}
	text, err := d.ReadRaw()
	*dst = slices.Clone(text)
	return err
}
