package remote

import (
	"bytes"

	"penstock/core/kv"
)

// EventTemplate holds the last event of a stream that contained tokens of one choice and nothing else, and
// recognizes events which differ from it only in the text and the ids. Nearly all events of a stream do. The
// comparison takes a tenth of the time of decoding. The text is skipped.
//
// A dialect records the positions of both while it decodes an event: Reset, then MarkText and MarkIDs, then
// Learn.
type Alike struct {
	text, ids span // in the event being read; an absent text is empty
	several   bool // one of them appeared twice
	// Of the learned event: the bytes before its text, between the text and the ids, and after those, in
	// reused memory.
	memory                 []byte
	before, between, after []byte
	hasText, known         bool
	choice                 int
}

// Reset starts a new event.
func (a *Alike) Begin() { a.text, a.ids, a.several, a.known = span{}, span{}, false, false }

// MarkText records the position of the text in the event.
func (a *Alike) Text(from, to int) {
	a.several = a.several || a.text.to > 0
	a.text = span{from, to}
}

// MarkIDs records the position of the array of ids in the event.
func (a *Alike) IDs(from, to int) {
	a.several = a.several || a.ids.to > 0
	a.ids = span{from, to}
}

// Learn records that the event contained only tokens of one choice. data is the event; it is not kept.
func (a *Alike) Learn(data []byte, choice int) {
	if a.several || a.ids.to == 0 || data[a.ids.from] != '[' {
		return
	}
	a.hasText = a.text.to > 0
	if !a.hasText {
		a.text = span{a.ids.from, a.ids.from}
	} else if a.text.to > a.ids.from || data[a.text.from] != '"' {
		return
	}
	a.memory = append(a.memory[:0], data...)
	a.before, a.between, a.after = a.memory[:a.text.from], a.memory[a.text.to:a.ids.from], a.memory[a.ids.to:]
	a.known, a.choice = true, choice
}

// MatchTokens appends the ids of an event that matches the learned one to dst, and returns their choice; ok
// is false if the event does not match, or none was learned.
func (a *Alike) Read(data []byte, dst []kv.Token) (choice int, tokens []kv.Token, ok bool) {
	if !a.known || !bytes.HasPrefix(data, a.before) {
		return 0, dst, false
	}
	c := Cursor{data: data, pos: len(a.before)}
	if a.hasText {
		if c.pos == len(data) || data[c.pos] != '"' {
			return 0, dst, false
		}
		c.str()
	}
	if c.err != nil || !bytes.HasPrefix(data[c.pos:], a.between) {
		return 0, dst, false
	}
	c.pos += len(a.between)
	tokens = c.Tokens(dst)
	if c.err != nil || !bytes.Equal(data[c.pos:], a.after) {
		return 0, dst, false
	}
	return a.choice, tokens, true
}
