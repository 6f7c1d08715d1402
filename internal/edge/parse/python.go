package parse

import (
	"encoding/json"
	"unicode/utf8"
)

// literalConverter converts Python literals, and similar ones, to compact JSON: strings in either quote,
// tuples, True, False, None, trailing commas, names without quotes.
type literalConverter struct {
	closers []byte // of the open brackets, as JSON has them
	quote   byte   // ends the string; 0 outside of strings, rawQuote for tokens
	// opening counts the quotes at the start of a string: after one the string has begun, after two it may be
	// empty. triple strings end at a run of three.
	opening, run int
	triple       bool
	esc          []byte
	word         []byte // which the next byte completes
	spaced       bool   // white space follows word
	comma        bool   // not written yet
	item         itemPart
	fillsKeys    bool // a key without a colon has the empty string as its value
}

// itemPart is how far an item of a list or a member of an object was read.
type itemPart uint8

const (
	itemStart itemPart = iota // nothing
	itemKey                   // a key, without its colon
	itemColon                 // a key and its colon
	itemValue
)

// rawQuote stands for a token which quotes: there are no escapes inside.
const rawQuote = 1

// depth returns the number of open brackets.
func (l *literalConverter) depth() int { return len(l.closers) }

// nextCloser returns the byte which closes the last of the open brackets; 0 if there is none.
func (l *literalConverter) nextCloser() byte {
	if len(l.closers) == 0 {
		return 0
	}
	return l.closers[len(l.closers)-1]
}

// isInString reports whether c would be read as part of a string.
func (l *literalConverter) isInString(c byte) bool {
	return l.quote != 0 && !(l.opening == 2 && c != l.quote)
}

// convertByte reads c and appends the output which it completes to dst.
func (l *literalConverter) convertByte(dst []byte, c byte) []byte {
	if l.opening == 2 && c != l.quote {
		dst = l.flushWord(dst)
	}
	if l.quote != 0 {
		return l.readStringByte(dst, c)
	}
	if len(l.word) > 0 {
		switch {
		case isSpace(c):
			l.spaced = true
			return dst
		case isWordByte(c) && len(l.word) < maxHeld:
			if l.spaced {
				l.word, l.spaced = append(l.word, ' '), false
			}
			l.word = append(l.word, c)
			return dst
		case c == ':':
			dst = appendQuoted(dst, l.word)
			l.word = l.word[:0]
		case (c == '"' || c == '\'') && len(l.word) == 1: // r'…', b'…'
			l.word = l.word[:0]
		default:
			dst = l.flushWord(dst)
		}
		l.spaced = false
	}
	switch c {
	case ' ', '\n', '\r', '\t':
	case ',':
		dst = l.writeMissing(dst)
		l.comma, l.item = true, itemStart
	case ':':
		dst = append(dst, c)
		l.item = itemColon
	case '(', '[', '{':
		dst = l.beginItem(dst)
		l.item = itemStart
		closer := byte('}')
		if c != '{' {
			c, closer = '[', ']'
		}
		l.closers = append(l.closers, closer)
		dst = append(dst, c)
	case ')', ']', '}':
		dst = l.writeMissing(dst)
		l.comma, l.item = false, itemValue
		l.closers = l.closers[:max(l.depth()-1, 0)]
		if c == ')' {
			c = ']'
		}
		dst = append(dst, c)
	case '"', '\'':
		dst = append(l.beginItem(dst), '"')
		l.quote, l.opening = c, 1
	default:
		dst = l.beginItem(dst)
		l.word = append(l.word, c)
	}
	return dst
}

func isWordByte(c byte) bool {
	switch c {
	case ',', ':', '(', '[', '{', ')', ']', '}', '"', '\'':
		return false
	}
	return true
}

// beginItem begins a key or a value: it writes the comma before it.
func (l *literalConverter) beginItem(dst []byte) []byte {
	if l.item == itemStart && l.nextCloser() == '}' {
		l.item = itemKey
	} else {
		l.item = itemValue
	}
	if l.comma {
		l.comma = false
		return append(dst, ',')
	}
	return dst
}

// writeMissing writes the empty string for a value which is not there: {a:,b:1}, or {a,b:1}.
func (l *literalConverter) writeMissing(dst []byte) []byte {
	if l.item == itemKey && l.fillsKeys {
		dst = append(dst, ':')
		l.item = itemColon
	}
	if l.item == itemColon {
		dst = append(dst, '"', '"')
	}
	return dst
}

// toggleRawString reads a token which quotes.
func (l *literalConverter) toggleRawString(dst []byte) []byte {
	if l.quote == rawQuote {
		l.quote = 0
		return append(dst, '"')
	}
	dst = append(l.beginItem(l.flushWord(dst)), '"')
	l.quote = rawQuote
	return dst
}

// closeString ends the string which is being read, if there is one. An escape which is not complete is text.
func (l *literalConverter) closeString(dst []byte) []byte {
	if l.quote == 0 {
		return dst
	}
	for _, c := range l.esc {
		dst = appendEscaped(dst, c)
	}
	dst = append(l.writeRun(dst), '"')
	l.quote, l.opening, l.triple, l.esc = 0, 0, false, l.esc[:0]
	return dst
}

// writeRun writes the quotes which do not end their string.
func (l *literalConverter) writeRun(dst []byte) []byte {
	for ; l.run > 0; l.run-- {
		dst = appendEscaped(dst, l.quote)
	}
	return dst
}

// flushWord writes the complete word, or the end of the complete string.
func (l *literalConverter) flushWord(dst []byte) []byte {
	if l.opening == 2 {
		l.quote, l.opening = 0, 0
		return append(dst, '"')
	}
	if len(l.word) == 0 {
		return dst
	}
	switch w := string(l.word); {
	case w == "True", w == "true":
		dst = append(dst, "true"...)
	case w == "False", w == "false":
		dst = append(dst, "false"...)
	case w == "None", w == "null":
		dst = append(dst, "null"...)
	case json.Valid(l.word):
		dst = append(dst, w...)
	default:
		dst = appendQuoted(dst, l.word)
	}
	l.word, l.spaced = l.word[:0], false
	return dst
}

// readStringByte reads c inside a string.
func (l *literalConverter) readStringByte(dst []byte, c byte) []byte {
	if l.quote == rawQuote {
		return appendEscaped(dst, c)
	}
	if len(l.esc) > 0 {
		return l.readEscapeByte(dst, c)
	}
	if c == l.quote {
		switch {
		case l.opening == 1:
			l.opening = 2
		case l.opening == 2:
			l.opening, l.triple, l.run = 0, true, 0
		case l.triple:
			if l.run++; l.run == 3 {
				l.quote, l.triple, l.run = 0, false, 0
				dst = append(dst, '"')
			}
		default:
			l.quote = 0
			dst = append(dst, '"')
		}
		return dst
	}
	dst = l.writeRun(dst)
	l.opening = 0
	if c == '\\' {
		l.esc = append(l.esc[:0], c)
		return dst
	}
	return appendEscaped(dst, c)
}

// readEscapeByte reads c inside an escape. An escape which Python does not know is text.
func (l *literalConverter) readEscapeByte(dst []byte, c byte) []byte {
	l.esc = append(l.esc, c)
	kind := l.esc[1]
	if len(l.esc) == 2 {
		switch kind {
		case 'x', 'u', 'U':
			return dst
		}
		l.esc = l.esc[:0]
		switch kind {
		case '\n':
			return dst
		case '\'':
			return append(dst, kind)
		case '"', '\\', 'n', 'r', 't', 'b', 'f':
			return append(dst, '\\', kind)
		case 'a', 'v', '0':
			return appendEscaped(dst, map[byte]byte{'a': 7, 'v': 11, '0': 0}[kind])
		}
		return appendEscaped(append(dst, '\\', '\\'), c)
	}
	if !isHex(c) {
		for _, e := range l.esc[:len(l.esc)-1] {
			dst = appendEscaped(dst, e)
		}
		l.esc = l.esc[:0]
		return l.readStringByte(dst, c)
	}
	digits := l.esc[2:]
	switch {
	case kind == 'x' && len(digits) == 2:
		dst = append(append(dst, `\u00`...), digits...)
	case kind == 'u' && len(digits) == 4:
		dst = append(append(dst, `\u`...), digits...)
	case kind == 'U' && len(digits) == 8:
		var r rune
		for _, d := range digits {
			r = r<<4 | rune(hexValue(d))
		}
		if r >= 0 && r < ' ' || r == '"' || r == '\\' {
			dst = appendEscaped(dst, byte(r))
		} else {
			dst = utf8.AppendRune(dst, r)
		}
	default:
		return dst
	}
	l.esc = l.esc[:0]
	return dst
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

func hexValue(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// convertPythonValue returns the literal v as JSON. The result is not valid JSON if v is not a literal.
func convertPythonValue(v []byte) []byte {
	var l literalConverter
	var dst []byte
	for _, c := range v {
		dst = l.convertByte(dst, c)
	}
	return l.flushWord(dst)
}
