package responses

import (
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// turn is a turn of the assistant that is being put together. The items of one
// answer (what it thought, said and called) are one message of a conversation, and
// results of calls follow the message that made them, which templates rely on.
// So a turn is reasoning, a text and calls, and one that has calls goes on until
// something other than the assistant's comes.
type turn struct {
	open, said bool
	reasoning  []byte
	content    []byte
	calls      []byte // a JSON array without its last bracket; nil if none
}

// say adds a text, which begins a turn if this one has its text already.
func (d *decoder) say(text string) {
	d.beginTurn()
	d.turn.said = true
	d.turn.content = appendLine(d.turn.content, text)
}

// think adds reasoning, which comes before the text of its turn.
func (d *decoder) think(text string) {
	d.beginTurn()
	d.turn.reasoning = appendLine(d.turn.reasoning, text)
}

// beginTurn opens a turn, a new one if this one is complete: it has its text, and
// no calls whose results are still to come.
func (d *decoder) beginTurn() {
	if d.turn.said && d.turn.calls == nil {
		d.endTurn()
	}
	d.turn.open = true
}

// call adds a call in the form of chat requests.
func (d *decoder) call(id, name, arguments string) {
	t := &d.turn
	t.open = true
	if t.calls == nil {
		t.calls = []byte{'['}
	} else {
		t.calls = append(t.calls, ',')
	}
	t.calls = append(t.calls, `{"id":`...)
	t.calls = strictjson.AppendString(t.calls, id)
	t.calls = append(t.calls, `,"type":"function","function":{"name":`...)
	t.calls = strictjson.AppendString(t.calls, name)
	t.calls = append(t.calls, `,"arguments":`...)
	t.calls = strictjson.AppendString(t.calls, arguments)
	t.calls = append(t.calls, `}}`...)
}

// endTurn adds the turn to the conversation if one is open.
func (d *decoder) endTurn() {
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

// appendLine appends a text, on a line of its own if there is one before it.
func appendLine(dst []byte, text string) []byte {
	if len(dst) > 0 && text != "" {
		dst = append(dst, '\n')
	}
	return append(dst, text...)
}
