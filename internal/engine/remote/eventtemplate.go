package remote

import (
	"bytes"

	"penstock/core/kv"
	"penstock/internal/strictjson"
)

// EventTemplate holds the last event of a stream that contained tokens of one choice and nothing else, and
// recognizes events which differ from it only in the text and the ids. Nearly all events of a stream do. The
// comparison takes a tenth of the time of decoding. The text is skipped.
//
// A dialect records the positions of both while it decodes an event: Reset, then MarkText and MarkIDs, then
// Learn.
type EventTemplate struct {
	text, ids  byteRange // in the event being read; an absent text is empty
	duplicated bool      // one of them appeared twice
	// Of the learned event: the bytes before its text, between the text and the ids, and after those, in
	// reused memory.
	buf                    []byte
	before, between, after []byte
	hasText, learned       bool
	choice                 int
}

// Reset starts a new event.
func (a *EventTemplate) Reset() {
	a.text, a.ids, a.duplicated, a.learned = byteRange{}, byteRange{}, false, false
}

// MarkText records the position of the text in the event.
func (a *EventTemplate) MarkText(from, to int) {
	a.duplicated = a.duplicated || a.text.to > 0
	a.text = byteRange{from, to}
}

// MarkIDs records the position of the array of ids in the event.
func (a *EventTemplate) MarkIDs(from, to int) {
	a.duplicated = a.duplicated || a.ids.to > 0
	a.ids = byteRange{from, to}
}

// Learn records that the event contained only tokens of one choice. data is the event; it is not kept.
func (a *EventTemplate) Learn(data []byte, choice int) {
	if a.duplicated || a.ids.to == 0 || data[a.ids.from] != '[' {
		return
	}
	a.hasText = a.text.to > 0
	if !a.hasText {
		a.text = byteRange{a.ids.from, a.ids.from}
	} else if a.text.to > a.ids.from || data[a.text.from] != '"' {
		return
	}
	a.buf = append(a.buf[:0], data...)
	a.before, a.between, a.after = a.buf[:a.text.from], a.buf[a.text.to:a.ids.from], a.buf[a.ids.to:]
	a.learned, a.choice = true, choice
}

// MatchTokens appends the ids of an event that matches the learned one to dst, and returns their choice; ok
// is false if the event does not match, or none was learned.
func (a *EventTemplate) MatchTokens(data []byte, dst []kv.Token) (choice int, tokens []kv.Token, ok bool) {
	if !a.learned || !bytes.HasPrefix(data, a.before) {
		return 0, dst, false
	}
	rest := data[len(a.before):]
	if a.hasText {
		if len(rest) == 0 || rest[0] != '"' {
			return 0, dst, false
		}
		text := strictjson.NewCursor(rest)
		text.Skip()
		rest = rest[text.Pos():]
	}
	if !bytes.HasPrefix(rest, a.between) {
		return 0, dst, false
	}
	rest = rest[len(a.between):]
	c := strictjson.NewCursor(rest)
	tokens = c.ReadTokens(dst)
	if c.Err() != nil || !bytes.Equal(rest[c.Pos():], a.after) {
		return 0, dst, false
	}
	return a.choice, tokens, true
}
