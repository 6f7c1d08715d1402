package anthropic

import (
	"slices"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// block is a content block as it was read. Its type may come after the rest, so
// that what it has is judged at the end.
type block struct {
	kind  string
	keys  []string // that it has
	given []string // those that are not null

	text     string // of text
	thinking string // of thinking
	// A call's.
	id, name, input string
	caller, toolset string
	// A result's.
	useID   string
	content string
	isError bool

	bad error // what is wrong, if the block is of a type that is taken
}

// blockKeys are the keys that a block of a type may have; nil of a type that is
// not taken. The last of tool_use is in our own answers, for calls that were cut
// short.
func blockKeys(kind string) []string {
	switch kind {
	case "text":
		return []string{"type", "text", "citations", "cache_control"}
	case "thinking":
		return []string{"type", "thinking", "signature"}
	case "redacted_thinking":
		return []string{"type", "data"}
	case "tool_use":
		return []string{"type", "id", "name", "input", "caller", "toolset_name", "cache_control", "partial_json"}
	case "tool_result":
		return []string{"type", "tool_use_id", "content", "is_error", "toolset_name", "cache_control"}
	}
	return nil
}

// block reads one content block into t.
func (d *decoder) block(t *turn) error {
	var b block
	err := d.blockFields(&b, d.blockField)
	if err == nil {
		err = d.checkBlock(&b)
	}
	if err != nil {
		return err
	}
	switch b.kind {
	case "text":
		t.texts = t.piece(t.texts, b.kind, b.text)
	case "thinking":
		t.thoughts = t.piece(t.thoughts, b.kind, b.thinking)
	case "tool_use":
		err = d.toolUse(&b, t)
	case "tool_result":
		err = d.toolResult(&b, t)
	}
	t.last = b.kind
	return err
}

// blockFields reads the keys of a block, of whose values read takes those that
// are not null.
func (d *decoder) blockFields(b *block, read func(b *block, key string) error) error {
	const enough = 17 // more than any type has
	return d.Object(func(key string) error {
		if len(b.keys) < enough {
			b.keys = append(b.keys, key)
		}
		if none, err := d.Null(); none || err != nil {
			return err
		}
		if len(b.given) < enough {
			b.given = append(b.given, key)
		}
		return read(b, key)
	})
}

// blockField reads the value of one key of a block.
func (d *decoder) blockField(b *block, key string) error {
	switch key {
	case "type":
		return d.Text(&b.kind)
	case "text":
		return d.Text(&b.text)
	case "thinking":
		return d.Text(&b.thinking)
	case "id":
		return d.Text(&b.id)
	case "name":
		return d.Text(&b.name)
	case "tool_use_id":
		return d.Text(&b.useID)
	case "toolset_name":
		return d.Text(&b.toolset)
	case "is_error":
		return d.Flag(&b.isError)
	case "input":
		return d.input(b)
	case "caller":
		return d.caller(b)
	case "content":
		return d.resultContent(b)
	}
	return d.Skip()
}

// note keeps the first thing that is wrong with a block, until its type is known.
func (b *block) note(err error) {
	if b.bad == nil {
		b.bad = err
	}
}

// input reads the arguments of a call as they were written.
func (d *decoder) input(b *block) error {
	if d.Kind() != strictjson.ObjectKind {
		b.note(d.Expected("an object"))
	}
	raw, err := d.Raw()
	b.input = string(raw)
	return err
}

// caller reads who made a call.
func (d *decoder) caller(b *block) error {
	if d.Kind() != strictjson.ObjectKind {
		b.note(d.Expected("an object"))
		return d.Skip()
	}
	return d.Object(func(key string) error {
		if key == "type" && d.Kind() == strictjson.StringKind {
			return d.Text(&b.caller)
		}
		return d.Skip()
	})
}

// resultContent reads what a tool said: a string or an array of blocks of text.
// The blocks of other types have a content as well, of other kinds.
func (d *decoder) resultContent(b *block) error {
	switch d.Kind() {
	case strictjson.StringKind:
		return d.Text(&b.content)
	case strictjson.ArrayKind:
	default:
		b.note(d.Expected("a string or an array of content blocks"))
		return d.Skip()
	}
	first := true
	var text []byte
	err := d.Array("an array", func(int) error {
		if d.Kind() != strictjson.ObjectKind {
			b.note(d.Expected("an object"))
			return d.Skip()
		}
		s, err := d.resultPart(b)
		if !first {
			text = append(text, '\n')
		}
		first = false
		text = append(text, s...)
		return err
	})
	b.content = string(text)
	return err
}

// resultPart reads one block of a tool's result.
func (d *decoder) resultPart(b *block) (string, error) {
	var part block
	err := d.blockFields(&part, d.partField)
	switch {
	case err != nil:
		return "", err
	case blockKeys(part.kind) != nil && part.kind != "text":
		b.note(d.Refuse("is of type %.100q, which is no result of a tool: send text only", part.kind))
	default:
		b.note(d.checkBlock(&part))
	}
	return part.text, nil
}

// partField reads the value of one key of a block in a result.
func (d *decoder) partField(part *block, key string) error {
	dst := &part.text
	switch key {
	case "type":
		dst = &part.kind
	case "text":
	default:
		return d.Skip()
	}
	if d.Kind() != strictjson.StringKind {
		part.note(d.Expected("a string"))
		return d.Skip()
	}
	return d.Text(dst)
}

// checkBlock judges what all types have in common.
func (d *decoder) checkBlock(b *block) error {
	keys := blockKeys(b.kind)
	switch {
	case b.kind == "" && b.bad == nil:
		return d.Refuse("needs a 'type'")
	case b.kind == "":
		return b.bad
	case keys == nil:
		return d.Refuse("is of type %.100q, which is not supported by this server: send text only", b.kind)
	case b.bad != nil:
		return b.bad
	}
	for _, key := range b.keys {
		if !slices.Contains(keys, key) {
			p := d.Param() + "." + strictjson.Clip(key)
			return fault.Param(p, "Unsupported parameter(s): %s", p)
		}
	}
	if needs := blockNeeds(b.kind); needs != "" && !slices.Contains(b.given, needs) {
		return d.Refuse("needs '%s'", needs)
	}
	return nil
}

// blockNeeds is the key without which a block says nothing.
func blockNeeds(kind string) string {
	switch kind {
	case "text", "thinking":
		return kind
	case "tool_use":
		return "input"
	}
	return ""
}

// toolUse takes an assistant's call.
func (d *decoder) toolUse(b *block, t *turn) error {
	switch {
	case b.id == "":
		return d.Refuse("needs an 'id'")
	case b.name == "":
		return d.Refuse("needs a 'name'")
	case b.caller != "" && b.caller != "direct":
		return d.Refuse("was called by %.100q, which is not supported by this server: send what the model called itself", b.caller)
	case b.toolset != "":
		return d.Refuse("is of a toolset, which is not supported by this server: send custom tools")
	}
	call := append(make([]byte, 0, 96+len(b.input)), `{"id":`...)
	call = strictjson.AppendString(call, b.id)
	call = append(call, `,"type":"function","function":{"name":`...)
	call = strictjson.AppendString(call, b.name)
	call = append(call, `,"arguments":`...)
	call = strictjson.AppendString(call, b.input)
	t.calls = append(t.calls, string(append(call, `}}`...)))
	if d.names == nil {
		d.names = map[string]string{}
	}
	d.names[b.id] = b.name
	return nil
}

// toolResult takes a tool's answer.
func (d *decoder) toolResult(b *block, t *turn) error {
	switch {
	case b.useID == "":
		return d.Refuse("needs a 'tool_use_id'")
	case b.toolset != "":
		return d.Refuse("is of a toolset, which is not supported by this server: send custom tools")
	case b.isError && b.content == "":
		b.content = "error"
	}
	t.results = append(t.results, api.Message{Role: "tool", Name: d.names[b.useID], Content: b.content, ToolCallID: b.useID})
	return nil
}
