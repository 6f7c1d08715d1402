package responses

import "penstock/internal/edge/api"

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
