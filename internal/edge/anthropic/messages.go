package anthropic

import (
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// chatTurn is the content of one or more adjacent messages of one role. Texts and thoughts are pieces and the
// separators between them.
type chatTurn struct {
	role        string
	texts       []string
	thoughts    []string
	calls       []byte        // elements of api.Message.ToolCalls, each preceded by a comma
	results     []api.Message // of tools
	images      []turnImage
	hasRedacted bool   // it contains redacted thinking
	lastType    string // the type of the last block
}

// turnImage is an image of a turn. It precedes the text piece of index before.
type turnImage struct {
	before int
	media  *api.Media
}

// contentParts returns the parts of a turn with images; nil for other turns.
func (t *chatTurn) contentParts() []api.Part {
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
func (t *chatTurn) hasAssistantBlocks() bool {
	return t.hasRedacted || len(t.calls)+len(t.thoughts) > 0
}

// appendPiece appends s to the pieces of a kind of block. A newline separates it, unless an answer has blocks
// of another kind in between, which split one text.
func (t *chatTurn) appendPiece(pieces []string, kind, s string) []string {
	parted := t.lastType != kind && (t.lastType == "text" || t.lastType == "thinking" || t.lastType == "tool_use")
	if len(pieces) > 0 && !parted {
		pieces = append(pieces, "\n")
	}
	return append(pieces, s)
}

// readMessage reads one element of messages. Its role may follow its content, so both are validated at the
// end.
func (d *requestDecoder) readMessage(i int) error {
	if i >= maxMessages {
		return d.ParentInvalidError("must have at most %d messages", maxMessages)
	}
	var t chatTurn
	var content bool
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "role":
			return d.ReadStringInto(&t.role)
		case "content":
			content = true
			return d.readContent(&t)
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case t.role == "":
		return d.InvalidError("needs a 'role'")
	case t.role != "user" && t.role != "assistant" && t.role != "system":
		return d.InvalidError("has an unknown role: it must be user, assistant or system")
	case !content:
		return d.InvalidError("needs 'content'")
	case t.role != "assistant" && t.hasAssistantBlocks():
		return d.InvalidError("has blocks of an assistant (tool_use, thinking), and its role is %s", t.role)
	case t.role != "user" && len(t.images) > 0:
		return d.InvalidError("has an image, and its role is %s: the user shows it", t.role)
	case t.role != "user" && len(t.results) > 0:
		return d.InvalidError("has a tool_result, and its role is %s: the user gives it", t.role)
	}
	d.addTurn(&t)
	return nil
}

// readContent reads a string or an array of blocks.
func (d *requestDecoder) readContent(t *chatTurn) error {
	if d.Kind() == strictjson.StringKind {
		s, err := d.ReadString()
		t.texts = append(t.texts, s)
		return err
	}
	return d.ReadArray("a string or an array of content blocks", func(int) error {
		if d.blocks++; d.blocks > maxBlocks {
			return d.ParentInvalidError("must have at most %d blocks together with those before it", maxBlocks)
		}
		return d.readBlock(t)
	})
}

// addTurn adds a message's turn: as a new turn, or to the last one.
func (d *requestDecoder) addTurn(t *chatTurn) {
	last := &d.turn
	if t.role != last.role || t.role == "system" {
		d.flushTurn()
		*last = *t
		return
	}
	last.texts = joinPieces(last.texts, t.texts)
	before := len(last.texts) - len(t.texts)
	for _, i := range t.images {
		i.before += before
		last.images = append(last.images, i)
	}
	last.thoughts = joinPieces(last.thoughts, t.thoughts)
	last.calls = append(last.calls, t.calls...)
	last.results = append(last.results, t.results...)
}

// joinPieces appends the pieces of a further message.
func joinPieces(pieces, further []string) []string {
	if len(pieces) > 0 && len(further) > 0 {
		pieces = append(pieces, "\n")
	}
	return append(pieces, further...)
}

// flushTurn converts the last turn to messages.
func (d *requestDecoder) flushTurn() {
	t := d.turn
	d.turn = chatTurn{}
	q := d.Req
	q.Messages = append(q.Messages, t.results...)
	if t.role == "system" {
		t.texts = stripBillingLine(t.texts)
	}
	if t.role == "" || len(t.texts)+len(t.images) == 0 && (len(t.results) > 0 || t.role == "system") {
		return // the turn has no other content
	}
	m := api.Message{Role: t.role, Content: strings.Join(t.texts, ""), Reasoning: strings.Join(t.thoughts, ""), Parts: t.contentParts()}
	if len(t.calls) > 0 {
		t.calls[0] = '['
		m.ToolCalls = append(t.calls, ']')
		m.NoContent = m.Content == ""
	}
	q.Messages = append(q.Messages, m)
}

// readSystemPrompt reads the field "system": a string or an array of text blocks.
func (d *requestDecoder) readSystemPrompt() error {
	var t chatTurn
	if err := d.readContent(&t); err != nil {
		return err
	}
	if t.hasAssistantBlocks() || len(t.results)+len(t.images) > 0 {
		return d.InvalidError("must have blocks of type \"text\" only")
	}
	d.system = strings.Join(stripBillingLine(t.texts), "")
	return nil
}

// stripBillingLine removes the line which Claude Code puts before its system prompt from the pieces of a
// text: the first piece, or its first line.
func stripBillingLine(texts []string) []string {
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
func (d *requestDecoder) finishMessages() error {
	q := d.Req
	last := d.turn
	silent := strings.Join(last.texts, "") == ""
	opening := last.role == "assistant" && silent && !last.hasAssistantBlocks()
	if opening {
		d.turn = chatTurn{} // the answer starts empty
	}
	d.flushTurn()
	switch {
	case len(q.Messages) == 0:
		return fault.InvalidParam("messages", "'messages' is required and must have at least one message of the user")
	case last.role != "assistant" || opening:
	case len(last.calls) > 0:
		return fault.InvalidParam("messages", "'messages' ends with a tool_use: give the tool_result in a message of the user")
	case silent:
		return fault.InvalidParam("messages", "'messages' ends with thinking: an answer can be continued from its text only")
	default:
		q.ContinueFinal, q.AddGenerationPrompt = true, false
	}
	if d.system != "" {
		q.Messages = append([]api.Message{{Role: "system", Content: d.system}}, q.Messages...)
	}
	return nil
}
