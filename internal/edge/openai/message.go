package openai

import (
	"bytes"
	"slices"

	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// messageDraft is an element of messages while it is decoded: the meaning of a member may depend on later
// ones.
type messageDraft struct {
	api.Message
	content     bool // given
	refusal     string
	refusalPart bool // a content part is a refusal
	media       bool // a content part is media
}

// maxMessages bounds the memory of a body of tiny messages: each becomes a struct of a hundred bytes.
const maxMessages = 1 << 16

// readMessages reads messages.
func (d *requestDecoder) readMessages() error {
	d.messages = true
	return d.ReadArray("an array of messages", d.readMessage)
}

// readMessage reads element i of messages. A null member counts as not given.
func (d *requestDecoder) readMessage(i int) error {
	if i >= maxMessages {
		return d.ParentInvalidError("must have at most %d messages", maxMessages)
	}
	var m messageDraft
	if err := d.ReadMembers(func(key string) error { return d.readMessageMember(&m, key) }); err != nil {
		return err
	}
	if err := d.checkMessage(&m); err != nil {
		return err
	}
	d.Req.Messages = appendDoubling(d.Req.Messages, m.Message)
	return nil
}

// readMessageMember reads the value of one key of a message.
func (d *requestDecoder) readMessageMember(m *messageDraft, key string) error {
	switch key {
	case "role":
		role, err := d.ReadWord("system", "developer", "user", "assistant", "tool", "function")
		m.Role = role
		return err
	case "content":
		m.content = true
		return d.readContent(m)
	case "name":
		return d.ReadStringInto(&m.Name)
	case "tool_calls":
		return d.readToolCalls(m)
	case "tool_call_id":
		return d.ReadStringInto(&m.ToolCallID)
	case "reasoning_content", "reasoning":
		return d.readReasoning(m)
	case "refusal":
		return d.ReadStringInto(&m.refusal)
	case "annotations": // annotates the text of an earlier answer
		return d.SkipValue()
	case "function_call":
		return d.InvalidError(useToolCalls)
	case "audio":
		return d.RefuseUnsupported()
	}
	return d.UnsupportedError()
}

// readReasoning reads the assistant's reasoning, which has two names. Clients which echo both give it twice.
func (d *requestDecoder) readReasoning(m *messageDraft) error {
	s, err := d.ReadString()
	switch {
	case err != nil || s == "" || s == m.Reasoning:
		return err
	case m.Reasoning != "":
		return d.InvalidError("differs from the message's other reasoning: give one of 'reasoning_content' and 'reasoning'")
	}
	m.Reasoning = s
	return nil
}

// checkMessage validates a message as a whole. It adds the assistant's refusal to the content as text.
func (d *requestDecoder) checkMessage(m *messageDraft) error {
	if m.Role == "" {
		return d.InvalidError("needs a 'role'")
	}
	if m.Role != "assistant" {
		switch {
		case m.ToolCalls != nil:
			return d.InvalidError("has 'tool_calls', which only role assistant has")
		case m.refusal != "" || m.refusalPart:
			return d.InvalidError("has a 'refusal', which only role assistant has")
		case m.Reasoning != "":
			return d.InvalidError("has reasoning, which only role assistant has")
		}
	}
	if m.media && m.Role == "assistant" {
		return d.InvalidError("shows media, which an assistant's message cannot: put them into one of the user")
	}
	if m.ToolCallID != "" && m.Role != "tool" {
		return d.InvalidError("has a 'tool_call_id', which only role tool has")
	}
	switch {
	case m.refusal == "":
	case m.Content == "":
		m.Content = m.refusal
	default:
		m.Content += "\n" + m.refusal
	}
	if m.refusal != "" && m.Parts != nil {
		m.Parts = append(m.Parts, api.Part{Text: m.refusal})
	}
	switch {
	case m.content || m.refusal != "":
		return nil
	case m.ToolCalls != nil:
		m.NoContent = true
		return nil
	case m.Role == "assistant":
		return d.InvalidError("needs 'content' or 'tool_calls'")
	}
	return d.InvalidError("needs 'content'")
}

// readToolCalls reads the assistant's tool calls and keeps their JSON text, with unknown members, since
// clients echo what they received. An empty array counts as none.
func (d *requestDecoder) readToolCalls(m *messageDraft) error {
	n := 0
	text, err := d.CaptureRaw(func() error {
		return d.ReadArray("an array of tool calls", func(i int) error {
			n = i + 1
			return d.readToolCall()
		})
	})
	if n > 0 {
		m.ToolCalls = bytes.Clone(text)
	}
	return err
}

func (d *requestDecoder) readToolCall() error {
	var kind, name string
	var id, arguments optionalString
	err := d.ReadObject(func(key string) error {
		switch key {
		case "id":
			return id.readFrom(d)
		case "type":
			return d.ReadStringInto(&kind)
		case "function":
			return d.ReadObject(func(key string) error {
				switch key {
				case "name":
					return d.ReadStringInto(&name)
				case "arguments":
					return arguments.readFrom(d)
				}
				return d.SkipValue()
			})
		}
		return d.SkipValue()
	})
	switch {
	case err != nil:
		return err
	case kind == "custom":
		return d.InvalidError("is of type custom, which is not supported by this server: send calls of functions")
	case kind != "function":
		return d.InvalidError("needs a 'type', which must be function")
	case !id.given:
		return d.InvalidError("needs an 'id', which the tool's message answers")
	case name == "":
		return d.InvalidError("needs a 'function' with a 'name'")
	case !arguments.given:
		return d.InvalidError("needs 'function.arguments': JSON in a string")
	}
	return nil
}

// optionalString is a string which may be missing.
type optionalString struct {
	text  string
	given bool
}

func (o *optionalString) readFrom(d *requestDecoder) error {
	o.given = true
	return d.ReadStringInto(&o.text)
}

// readContent reads a string or an array of parts.
func (d *requestDecoder) readContent(m *messageDraft) error {
	const want = "a string or an array of content parts"
	if d.Kind() == strictjson.StringKind {
		return d.ReadStringInto(&m.Content)
	}
	d.parts = d.parts[:0]
	err := d.ReadArray(want, func(int) error { return d.readContentPart(m) })
	m.Content = api.JoinTexts(d.parts)
	if len(d.parts) > 0 {
		m.Parts = slices.Clone(d.parts)
	}
	return err
}

// mediaKeys maps the types of media parts to the member which contains the media object.
var mediaKeys = [...]struct {
	kind  string
	key   string
	shows media.Kind
}{
	{"image_url", "image_url", media.Image},
	{"image", "image", media.Image},
	{"input_image", "image_url", media.Image},
	{"video_url", "video_url", media.Video},
	{"audio_url", "audio_url", media.Audio},
	{"input_audio", "input_audio", media.Audio},
}

// mediaMember is the member of a part which contains a media object.
type mediaMember struct {
	key   string // "" if there is none
	media api.Media
}

// readContentPart reads one content part. Its type may follow the other members, so the part is validated at
// the end.
func (d *requestDecoder) readContentPart(m *messageDraft) error {
	var kind string
	var said, refused optionalString
	var shown mediaMember
	var stray error
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "text":
			return said.readFrom(d)
		case "refusal":
			return refused.readFrom(d)
		case "prompt_cache_breakpoint", "cache_control": // the prefix cache needs no hints
			return d.SkipValue()
		case "image_url", "image", "video_url", "audio_url", "input_audio":
			if shown.key != "" {
				return d.InvalidError("is a second media object of one part: give it a part of its own")
			}
			shown.key = key
			if key == "input_audio" {
				return api.ReadAudio(&d.Reader, &shown.media)
			}
			return api.ReadMediaLocation(&d.Reader, &shown.media)
		case "detail":
			return api.ReadImageDetail(&d.Reader)
		case "uuid":
			return api.ReadMediaName(&d.Reader, &shown.media)
		}
		if stray == nil {
			stray = d.UnsupportedError()
		}
		return d.SkipValue()
	})
	if err != nil {
		return err
	}
	if kind == "" {
		return d.InvalidError("needs a 'type'")
	}
	for _, k := range mediaKeys {
		if k.kind == kind {
			return d.addMediaPart(m, &shown, kind, k.key, k.shows, stray)
		}
	}
	switch {
	case kind == "file":
		return d.InvalidError("is of type %.100q, which is not supported by this server: send texts, images, videos and sounds", kind)
	case kind != "text" && kind != "refusal":
		return d.InvalidError("has an unknown type: the parts supported are of type \"text\", \"image_url\", \"video_url\", \"audio_url\" and \"input_audio\"")
	case shown.key != "":
		return d.InvalidError("is of type %s and has '%s': give each a part of its own", kind, shown.key)
	case shown.media.Name != "":
		return d.InvalidError("has a 'uuid', which only media objects have")
	case stray != nil:
		return stray
	case kind == "refusal" && !refused.given:
		return d.InvalidError("needs 'refusal'")
	case kind == "refusal":
		m.refusalPart = true
		d.parts = append(d.parts, api.Part{Text: refused.text})
		return nil
	case !said.given:
		return d.InvalidError("needs 'text'")
	}
	d.parts = append(d.parts, api.Part{Text: said.text})
	return nil
}

// addMediaPart validates and adds a part with a media object.
func (d *requestDecoder) addMediaPart(m *messageDraft, l *mediaMember, kind, key string, shows media.Kind, stray error) error {
	switch {
	case stray != nil:
		return stray
	case l.key == "":
		return d.InvalidError("needs '%s'", key)
	case l.key != key:
		return d.InvalidError("is of type %s and has '%s': it needs '%s'", kind, l.key, key)
	}
	if err := d.mediaCount.CountObject(&d.Reader); err != nil {
		return err
	}
	object := l.media
	object.Kind, object.Type, object.Part = shows, kind, d.ParamPath()
	d.parts = append(d.parts, api.Part{Media: &object})
	m.media = true
	return nil
}
