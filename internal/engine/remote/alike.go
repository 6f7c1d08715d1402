package remote

import (
	"bytes"

	"penstock/core/kv"
)

// Alike knows the last event of a stream that gave one choice tokens and said nothing else, and
// recognises those that differ from it in nothing but a text and the ids. Nearly all events of a
// stream do: to compare them takes a tenth of the time that reading them takes. The text is
// stepped over.
//
// Where the two stand in an event is told while it is read: Begin, then Text and IDs, then Learn.
type Alike struct {
	text, ids span // in the event that is being read; a text that is not there is empty
	several   bool // one of them came twice
	// Of the event that was learned: what is before its text, between the text and the ids, and
	// after those, in memory that is kept.
	memory                 []byte
	before, between, after []byte
	hasText, known         bool
	choice                 int
}

// Begin says that another event is read.
func (a *Alike) Begin() { a.text, a.ids, a.several, a.known = span{}, span{}, false, false }

// Text says that the text is between two places of the event.
func (a *Alike) Text(from, to int) {
	a.several = a.several || a.text.to > 0
	a.text = span{from, to}
}

// IDs says that the array of ids is between two places of the event.
func (a *Alike) IDs(from, to int) {
	a.several = a.several || a.ids.to > 0
	a.ids = span{from, to}
}

// Learn says that the event which was read has no more to say than tokens of one choice. data is
// the event; it is not kept.
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

// Read appends the ids of an event like the one that was learned to dst, and returns whose they
// are; ok is false if it is not like that one, or none was learned.
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
