package openai

import (
	"bytes"
	"slices"
	"strings"

	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// messageDraft is an element of messages while it is decoded: the meaning of a member may depend on later
// ones.
type turn struct {
	api.Message
	content     bool // given
	refusal     string
	refusalPart bool // a content part is a refusal
	media       bool // a content part is media
}

// maxMessages bounds the memory of a body of tiny messages: each becomes a struct of a hundred bytes.
const maxMessages = 1 << 16

// readMessage reads element i of messages. A null member counts as not given.
func (d *decoder) message(i int) error {
	if i >= maxMessages {
		return d.RefuseParent("must have at most %d messages", maxMessages)
	}
	var m turn
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		return d.member(&m, key)
	})
	if err != nil {
		return err
	}
	if err := d.checkMessage(&m); err != nil {
		return err
	}
	d.req.Messages = push(d.req.Messages, m.Message)
	return nil
}

// readMessageMember reads the value of one key of a message.
func (d *decoder) member(m *turn, key string) error {
	switch key {
	case "role":
		return d.role(&m.Role)
	case "content":
		m.content = true
		return d.content(m)
	case "name":
		return d.Text(&m.Name)
	case "tool_calls":
		return d.toolCalls(m)
	case "tool_call_id":
		return d.Text(&m.ToolCallID)
	case "reasoning_content", "reasoning":
		return d.thought(m)
	case "refusal":
		return d.Text(&m.refusal)
	case "annotations": // annotates the text of an earlier answer
		return d.Skip()
	case "function_call":
		return d.Refuse(nowToolCalls)
	case "audio":
		return d.notSupported()
	}
	return d.Unsupported()
}

// readReasoning reads the assistant's reasoning, which has two names. Clients which echo both give it twice.
func (d *decoder) thought(m *turn) error {
	s, err := d.String()
	switch {
	case err != nil || s == "" || s == m.Reasoning:
		return err
	case m.Reasoning != "":
		return d.Refuse("differs from the message's other reasoning: give one of 'reasoning_content' and 'reasoning'")
	}
	m.Reasoning = s
	return nil
}

// checkMessage validates a message as a whole. It adds the assistant's refusal to the content as text.
func (d *decoder) checkMessage(m *turn) error {
	if m.Role == "" {
		return d.Refuse("needs a 'role'")
	}
	if m.Role != "assistant" {
		switch {
		case m.ToolCalls != nil:
			return d.Refuse("has 'tool_calls', which only role assistant has")
		case m.refusal != "" || m.refusalPart:
			return d.Refuse("has a 'refusal', which only role assistant has")
		case m.Reasoning != "":
			return d.Refuse("has reasoning, which only role assistant has")
		}
	}
	if m.media && m.Role == "assistant" {
		return d.Refuse("shows media, which an assistant's message cannot: put them into one of the user")
	}
	if m.ToolCallID != "" && m.Role != "tool" {
		return d.Refuse("has a 'tool_call_id', which only role tool has")
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
		return d.Refuse("needs 'content' or 'tool_calls'")
	}
	return d.Refuse("needs 'content'")
}

func (d *decoder) role(dst *string) error {
	if err := d.Text(dst); err != nil {
		return err
	}
	switch *dst {
	case "system", "developer", "user", "assistant", "tool", "function":
		return nil
	}
	return d.Refuse("must be one of system, developer, user, assistant, tool and function")
}

// readToolCalls reads the assistant's tool calls and keeps their JSON text, with unknown members, since
// clients echo what they received. An empty array counts as none.
func (d *decoder) toolCalls(m *turn) error {
	n := 0
	text, err := d.Capture(func() error {
		return d.Array("an array of tool calls", func(i int) error {
			n = i + 1
			return d.toolCall()
		})
	})
	if n > 0 {
		m.ToolCalls = bytes.Clone(text)
	}
	return err
}

func (d *decoder) toolCall() error {
	var kind, id, name, arguments optional
	err := d.Object(func(key string) error {
		switch key {
		case "id":
			return id.read(d)
		case "type":
			return kind.read(d)
		case "function":
			return d.Object(func(key string) error {
				switch key {
				case "name":
					return name.read(d)
				case "arguments":
					return arguments.read(d)
				}
				return d.Skip()
			})
		}
		return d.Skip()
	})
	switch {
	case err != nil:
		return err
	case kind.text == "custom":
		return d.Refuse("is of type custom, which is not supported by this server: send calls of functions")
	case kind.text != "function":
		return d.Refuse("needs a 'type', which must be function")
	case !id.given:
		return d.Refuse("needs an 'id', which the tool's message answers")
	case name.text == "":
		return d.Refuse("needs a 'function' with a 'name'")
	case !arguments.given:
		return d.Refuse("needs 'function.arguments': JSON in a string")
	}
	return nil
}

// optionalString is a string which may be missing.
type optional struct {
	text  string
	given bool
}

func (o *optional) read(d *decoder) error {
	o.given = true
	return d.Text(&o.text)
}

// readContent reads a string or an array of parts.
func (d *decoder) content(m *turn) error {
	const want = "a string or an array of content parts"
	if d.Kind() == strictjson.StringKind {
		return d.Text(&m.Content)
	}
	d.parts = d.parts[:0]
	err := d.Array(want, func(int) error { return d.part(m) })
	m.Content = joined(d.parts)
	if len(d.parts) > 0 {
		m.Parts = slices.Clone(d.parts)
	}
	return err
}

// joinTexts returns the texts of parts, separated by newlines.
func joined(parts []api.Part) string {
	if len(parts) == 1 {
		return parts[0].Text
	}
	var text strings.Builder
	begun := false
	for i := range parts {
		if parts[i].Media != nil {
			continue
		}
		if begun {
			text.WriteByte('\n')
		}
		begun = true
		text.WriteString(parts[i].Text)
	}
	return text.String()
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
type location struct {
	key   string // "" if there is none
	media api.Media
}

// readContentPart reads one content part. Its type may follow the other members, so the part is validated at
// the end.
func (d *decoder) part(m *turn) error {
	var kind string
	var said, refused optional
	var shown location
	var stray error
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.Text(&kind)
		case "text":
			return said.read(d)
		case "refusal":
			return refused.read(d)
		case "prompt_cache_breakpoint", "cache_control": // the prefix cache needs no hints
			return d.Skip()
		case "image_url", "image", "video_url", "audio_url", "input_audio":
			if shown.key != "" {
				return d.Refuse("is a second media object of one part: give it a part of its own")
			}
			shown.key = key
			if key == "input_audio" {
				return api.ReadSound(d.Reader, &shown.media)
			}
			return api.ReadLocation(d.Reader, &shown.media)
		case "detail":
			return api.ReadDetail(d.Reader)
		case "uuid":
			return api.ReadMediaName(d.Reader, &shown.media)
		}
		if stray == nil {
			stray = d.Unsupported()
		}
		return d.Skip()
	})
	if err != nil {
		return err
	}
	if kind == "" {
		return d.Refuse("needs a 'type'")
	}
	for _, k := range mediaKeys {
		if k.kind == kind {
			return d.shown(m, &shown, kind, k.key, k.shows, stray)
		}
	}
	switch {
	case kind == "file":
		return d.Refuse("is of type %.100q, which is not supported by this server: send texts, images, videos and sounds", kind)
	case kind != "text" && kind != "refusal":
		return d.Refuse("has an unknown type: the parts supported are of type \"text\", \"image_url\", \"video_url\", \"audio_url\" and \"input_audio\"")
	case shown.key != "":
		return d.Refuse("is of type %s and has '%s': give each a part of its own", kind, shown.key)
	case shown.media.Name != "":
		return d.Refuse("has a 'uuid', which only media objects have")
	case stray != nil:
		return stray
	case kind == "refusal" && !refused.given:
		return d.Refuse("needs 'refusal'")
	case kind == "refusal":
		m.refusalPart = true
		d.parts = append(d.parts, api.Part{Text: refused.text})
		return nil
	case !said.given:
		return d.Refuse("needs 'text'")
	}
	d.parts = append(d.parts, api.Part{Text: said.text})
	return nil
}

// addMediaPart validates and adds a part with a media object.
func (d *decoder) shown(m *turn, l *location, kind, key string, shows media.Kind, stray error) error {
	switch {
	case stray != nil:
		return stray
	case l.key == "":
		return d.Refuse("needs '%s'", key)
	case l.key != key:
		return d.Refuse("is of type %s and has '%s': it needs '%s'", kind, l.key, key)
	}
	if err := d.count.Count(d.Reader); err != nil {
		return err
	}
	object := l.media
	object.Kind, object.Type, object.Part = shows, kind, d.Param()
	d.parts = append(d.parts, api.Part{Media: &object})
	m.media = true
	return nil
}
