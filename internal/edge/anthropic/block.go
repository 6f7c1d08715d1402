package anthropic

import (
	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// block is a content block as it was read. Its type may come after the rest, so
// that what it has is judged at the end.
type block struct {
	kind string
	keys []string // that it has
	said bool     // of text, thinking and input, that which it needs is not null

	text     string // of text
	thinking string // of thinking
	// A call's.
	id, name        string
	input           []byte // a part of the body
	caller, toolset string
	// A result's.
	useID   string
	content string
	isError bool

	bad error // what is wrong, if the block is of a type that is taken
}

// takes reports whether blocks of a type are understood.
func takes(kind string) bool {
	switch kind {
	case "text", "thinking", "redacted_thinking", "tool_use", "tool_result":
		return true
	}
	return false
}

// blockHas reports whether blocks of a type may have a key. partial_json is in our
// own answers, for calls that were cut short.
func blockHas(kind, key string) bool {
	switch key {
	case "type", "cache_control":
		return true
	case "text", "citations":
		return kind == "text"
	case "thinking", "signature":
		return kind == "thinking"
	case "data":
		return kind == "redacted_thinking"
	case "id", "name", "input", "caller", "partial_json":
		return kind == "tool_use"
	case "tool_use_id", "content", "is_error":
		return kind == "tool_result"
	case "toolset_name":
		return kind == "tool_use" || kind == "tool_result"
	}
	return false
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
		b.said = b.said || key == "text" || key == "thinking" || key == "input"
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
	b.input = raw
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
	var text []byte
	err := d.Array("an array", func(i int) error {
		switch {
		case b.bad != nil:
			return d.Skip()
		case d.Kind() != strictjson.ObjectKind:
			b.bad = d.Expected("an object")
			return d.Skip()
		}
		s, err := d.resultPart(b)
		if i > 0 {
			text = append(text, '\n')
		}
		text = append(text, s...)
		return err
	})
	b.content = string(text)
	return err
}

// resultPart reads one block of the result b, with which nothing is wrong yet.
func (d *decoder) resultPart(b *block) (string, error) {
	var part block
	err := d.blockFields(&part, d.partField)
	switch {
	case err != nil:
		return "", err
	case takes(part.kind) && part.kind != "text":
		b.bad = d.Refuse("is of type %.100q, which is no result of a tool: send text only", part.kind)
	default:
		b.bad = d.checkBlock(&part)
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
	switch {
	case b.kind == "" && b.bad == nil:
		return d.Refuse("needs a 'type'")
	case b.kind == "":
		return b.bad
	case !takes(b.kind):
		return d.Refuse("is of type %.100q, which is not supported by this server: send text only", b.kind)
	case b.bad != nil:
		return b.bad
	}
	for _, key := range b.keys {
		if !blockHas(b.kind, key) {
			p := d.Param() + "." + strictjson.Clip(key)
			return fault.Param(p, "Unsupported parameter(s): %s", p)
		}
	}
	if needs := blockNeeds(b.kind); needs != "" && !b.said {
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
	c := append(t.calls, ',')
	c = append(c, `{"id":`...)
	c = strictjson.AppendString(c, b.id)
	c = append(c, `,"type":"function","function":{"name":`...)
	c = strictjson.AppendString(c, b.name)
	c = append(c, `,"arguments":`...)
	c = strictjson.AppendString(c, b.input)
	t.calls = append(c, `}}`...)
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
