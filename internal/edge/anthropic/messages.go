package anthropic

import (
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// chatTurn is the content of one or more adjacent messages of one role. Texts and thoughts are pieces and the
// separators between them.
type turn struct {
	role     string
	texts    []string
	thoughts []string
	calls    []byte        // elements of api.Message.ToolCalls, each preceded by a comma
	results  []api.Message // of tools
	images   []image
	sealed   bool   // it contains redacted thinking
	last     string // the type of the last block
}

// turnImage is an image of a turn. It precedes the text piece of index before.
type image struct {
	before int
	media  *api.Media
}

// contentParts returns the parts of a turn with images; nil for other turns.
func (t *turn) parts() []api.Part {
	if len(t.images) == 0 {
		return nil
	}
	var parts []api.Part
	say := func(texts []string) {
		if len(texts) > 0 && texts[0] == "\n" { // it separates a text from one before the image
			texts = texts[1:]
		}
		if len(texts) > 0 {
			parts = append(parts, api.Part{Text: strings.Join(texts, "")})
		}
	}
	said := 0
	for _, i := range t.images {
		say(t.texts[said:i.before])
		said = i.before
		parts = append(parts, api.Part{Media: i.media})
	}
	say(t.texts[said:])
	return parts
}

// hasAssistantBlocks reports whether t has blocks which only an assistant's turn may have.
func (t *turn) assistant() bool { return t.sealed || len(t.calls)+len(t.thoughts) > 0 }

// appendPiece appends s to the pieces of a kind of block. A newline separates it, unless an answer has blocks
// of another kind in between, which split one text.
func (t *turn) piece(pieces []string, kind, s string) []string {
	parted := t.last != kind && (t.last == "text" || t.last == "thinking" || t.last == "tool_use")
	if len(pieces) > 0 && !parted {
		pieces = append(pieces, "\n")
	}
	return append(pieces, s)
}

// readMessage reads one element of messages. Its role may follow its content, so both are validated at the
// end.
func (d *decoder) message(i int) error {
	if i >= maxMessages {
		return d.RefuseParent("must have at most %d messages", maxMessages)
	}
	var t turn
	var content bool
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "role":
			return d.Text(&t.role)
		case "content":
			content = true
			return d.content(&t)
		}
		return d.Unsupported()
	})
	switch {
	case err != nil:
		return err
	case t.role == "":
		return d.Refuse("needs a 'role'")
	case t.role != "user" && t.role != "assistant" && t.role != "system":
		return d.Refuse("has an unknown role: it must be user, assistant or system")
	case !content:
		return d.Refuse("needs 'content'")
	case t.role != "assistant" && t.assistant():
		return d.Refuse("has blocks of an assistant (tool_use, thinking), and its role is %s", t.role)
	case t.role != "user" && len(t.images) > 0:
		return d.Refuse("has an image, and its role is %s: the user shows it", t.role)
	case t.role != "user" && len(t.results) > 0:
		return d.Refuse("has a tool_result, and its role is %s: the user gives it", t.role)
	}
	d.add(&t)
	return nil
}

// readContent reads a string or an array of blocks.
func (d *decoder) content(t *turn) error {
	if d.Kind() == strictjson.StringKind {
		s, err := d.String()
		t.texts = append(t.texts, s)
		return err
	}
	return d.Array("a string or an array of content blocks", func(int) error {
		if d.blocks++; d.blocks > maxBlocks {
			return d.RefuseParent("must have at most %d blocks together with those before it", maxBlocks)
		}
		return d.block(t)
	})
}

// addTurn adds a message's turn: as a new turn, or to the last one.
func (d *decoder) add(t *turn) {
	last := &d.turn
	if t.role != last.role || t.role == "system" {
		d.flush()
		*last = *t
		return
	}
	last.texts = more(last.texts, t.texts)
	before := len(last.texts) - len(t.texts)
	for _, i := range t.images {
		i.before += before
		last.images = append(last.images, i)
	}
	last.thoughts = more(last.thoughts, t.thoughts)
	last.calls = append(last.calls, t.calls...)
	last.results = append(last.results, t.results...)
}

// joinPieces appends the pieces of a further message.
func more(pieces, further []string) []string {
	if len(pieces) > 0 && len(further) > 0 {
		pieces = append(pieces, "\n")
	}
	return append(pieces, further...)
}

// flushTurn converts the last turn to messages.
func (d *decoder) flush() {
	t := d.turn
	d.turn = turn{}
	q := d.req
	q.Messages = append(q.Messages, t.results...)
	if t.role == "system" {
		t.texts = withoutBilling(t.texts)
	}
	if t.role == "" || len(t.texts)+len(t.images) == 0 && (len(t.results) > 0 || t.role == "system") {
		return // the turn has no other content
	}
	m := api.Message{Role: t.role, Content: strings.Join(t.texts, ""), Reasoning: strings.Join(t.thoughts, ""), Parts: t.parts()}
	if len(t.calls) > 0 {
		t.calls[0] = '['
		m.ToolCalls = append(t.calls, ']')
		m.NoContent = m.Content == ""
	}
	q.Messages = append(q.Messages, m)
}

// readSystemPrompt reads the field "system": a string or an array of text blocks.
func (d *decoder) systemPrompt() error {
	var t turn
	if err := d.content(&t); err != nil {
		return err
	}
	if t.assistant() || len(t.results)+len(t.images) > 0 {
		return d.Refuse("must have blocks of type \"text\" only")
	}
	d.system = strings.Join(withoutBilling(t.texts), "")
	return nil
}

// stripBillingLine removes the line which Claude Code puts before its system prompt from the pieces of a
// text: the first piece, or its first line.
func withoutBilling(texts []string) []string {
	if len(texts) == 0 || !strings.HasPrefix(texts[0], "x-anthropic-billing-header:") {
		return texts
	}
	_, rest, _ := strings.Cut(texts[0], "\n")
	if rest == "" {
		return texts[min(2, len(texts)):] // and the separator after it
	}
	texts[0] = rest
	return texts
}

// finishMessages completes the messages: it puts the system prompt first, and treats an assistant's turn at
// the end as the start of the answer.
func (d *decoder) conversation() error {
	q := d.req
	last := d.turn
	silent := strings.Join(last.texts, "") == ""
	opening := last.role == "assistant" && silent && !last.assistant()
	if opening {
		d.turn = turn{} // the answer starts empty
	}
	d.flush()
	switch {
	case len(q.Messages) == 0:
		return fault.Param("messages", "'messages' is required and must have at least one message of the user")
	case last.role != "assistant" || opening:
	case len(last.calls) > 0:
		return fault.Param("messages", "'messages' ends with a tool_use: give the tool_result in a message of the user")
	case silent:
		return fault.Param("messages", "'messages' ends with thinking: an answer can be continued from its text only")
	default:
		q.ContinueFinal, q.AddGenerationPrompt = true, false
	}
	if d.system != "" {
		q.Messages = append([]api.Message{{Role: "system", Content: d.system}}, q.Messages...)
	}
	return nil
}
