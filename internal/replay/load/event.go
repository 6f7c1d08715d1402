package load

import (
	"bytes"
	"errors"
)

// maxDepth bounds the nesting of an event's JSON.
const maxDepth = 64

// maxCount bounds the token counts which a server can report, so that the sums of a run stay in range.
const maxCount = 1 << 31

// errJSON is an event whose data is not a JSON object.
var errJSON = errors.New("event of the stream is not a JSON object")

// streamChunk is the relevant content of one event of a completions or chat completions stream.
type streamChunk struct {
	// text reports that a choice has generated content: text, content, reasoning, a refusal or a part of a
	// tool call.
	text bool
	// finished reports that a choice has its finish reason.
	finished bool
	// failed reports that the event is an error; overloaded that the server has no room for the request.
	failed, overloaded bool
	tokenUsage
}

// tokenUsage has the server's token counts of a request.
type tokenUsage struct {
	reported              bool // prompt and completion
	reportedCached        bool
	prompt, output, cache int
}

// parseChunk reads the data of an event. It looks at names and shapes only, and does not allocate.
func parseChunk(data []byte) (streamChunk, error) {
	c := jsonCursor{b: data}
	var out streamChunk
	for key := c.enterContainer('{'); key; key = c.nextMember('}') {
		switch string(c.readKey()) {
		case "choices":
			for item := c.enterOrSkip('['); item; item = c.nextMember(']') {
				c.parseChoice(&out)
			}
		case "usage":
			c.parseUsage(&out.tokenUsage)
		case "error":
			if c.peekByte() == 'n' {
				c.skipValue()
				break
			}
			out.failed = true
			c.parseFailure(&out)
		default:
			c.skipValue()
		}
	}
	c.skipSpace()
	if c.bad || c.i != len(data) {
		return streamChunk{}, errJSON
	}
	return out, nil
}

// jsonCursor walks through JSON. It is strict about the structure and lax about the rest. After the first
// fault bad is set and it does not move.
type jsonCursor struct {
	b     []byte
	i     int
	depth int
	bad   bool
}

func (c *jsonCursor) parseChoice(out *streamChunk) {
	for key := c.enterOrSkip('{'); key; key = c.nextMember('}') {
		switch string(c.readKey()) {
		case "text":
			out.text = c.skipNonEmpty() || out.text
		case "delta", "message":
			for key := c.enterOrSkip('{'); key; key = c.nextMember('}') {
				switch string(c.readKey()) {
				case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call":
					out.text = c.skipNonEmpty() || out.text
				default:
					c.skipValue()
				}
			}
		case "finish_reason":
			out.finished = c.peekByte() == '"' || out.finished
			c.skipValue()
		default:
			c.skipValue()
		}
	}
}

func (c *jsonCursor) parseUsage(out *tokenUsage) {
	var prompt, completion bool
	for key := c.enterOrSkip('{'); key; key = c.nextMember('}') {
		switch string(c.readKey()) {
		case "prompt_tokens":
			out.prompt, prompt = c.readCount()
		case "completion_tokens":
			out.output, completion = c.readCount()
		case "prompt_tokens_details":
			for key := c.enterOrSkip('{'); key; key = c.nextMember('}') {
				if string(c.readKey()) == "cached_tokens" {
					out.cache, out.reportedCached = c.readCount()
					continue
				}
				c.skipValue()
			}
		default:
			c.skipValue()
		}
	}
	out.reported = out.reported || prompt && completion
}

// parseFailure checks an error's value for signs of a server without room.
func (c *jsonCursor) parseFailure(out *streamChunk) {
	for key := c.enterOrSkip('{'); key; key = c.nextMember('}') {
		switch string(c.readKey()) {
		case "type", "code", "status":
			from := c.i
			c.skipValue()
			word := bytes.Trim(c.b[from:c.i], " \t\r\n\"")
			out.overloaded = out.overloaded || string(word) == "503" || string(word) == "529" ||
				bytes.Contains(word, []byte("overloaded")) || bytes.Contains(word, []byte("unavailable"))
		default:
			c.skipValue()
		}
	}
}

func (c *jsonCursor) skipSpace() {
	for c.i < len(c.b) && (c.b[c.i] == ' ' || c.b[c.i] == '\t' || c.b[c.i] == '\n' || c.b[c.i] == '\r') {
		c.i++
	}
}

// peekByte returns the first byte of the next value; 0 at the end.
func (c *jsonCursor) peekByte() byte {
	c.skipSpace()
	if c.bad || c.i == len(c.b) {
		return 0
	}
	return c.b[c.i]
}

func (c *jsonCursor) markBad() { c.bad = true }

// enterContainer enters an object or an array, and reports whether it has a member.
func (c *jsonCursor) enterContainer(open byte) bool {
	if c.peekByte() != open || c.depth == maxDepth {
		c.markBad()
		return false
	}
	c.i++
	c.depth++
	if c.peekByte() == open+2 { // '{' and '}', '[' and ']' are two apart
		c.i++
		c.depth--
		return false
	}
	return !c.bad
}

// enterOrSkip enters a container if there is one, and otherwise skips the value.
func (c *jsonCursor) enterOrSkip(open byte) bool {
	if c.peekByte() == open {
		return c.enterContainer(open)
	}
	c.skipValue()
	return false
}

// nextMember moves to the next member, or leaves the container.
func (c *jsonCursor) nextMember(end byte) bool {
	switch c.peekByte() {
	case ',':
		c.i++
		return true
	case end:
		c.i++
		c.depth--
		return false
	}
	c.markBad()
	return false
}

// readKey reads a name and the colon after it, and returns the name as written.
func (c *jsonCursor) readKey() []byte {
	if c.peekByte() != '"' {
		c.markBad()
		return nil
	}
	from := c.i + 1
	c.skipString()
	to := c.i - 1
	if c.peekByte() != ':' {
		c.markBad()
		return nil
	}
	c.i++
	return c.b[from:to]
}

// skipNonEmpty skips a value and reports whether it is a non-empty string, array or object.
func (c *jsonCursor) skipNonEmpty() bool {
	from := c.peekByte()
	start := c.i
	c.skipValue()
	if c.bad {
		return false
	}
	switch from {
	case '"':
		return c.i-start > 2
	case '[', '{':
		return len(bytes.Trim(c.b[start+1:c.i-1], " \t\r\n")) > 0
	}
	return false
}

// readCount reads a count; false if it is not a plausible one.
func (c *jsonCursor) readCount() (int, bool) {
	c.skipSpace()
	from := c.i
	c.skipValue()
	n, ok := parseNumber(c.b[from:c.i])
	return int(min(n, maxCount)), ok
}

// skipValue skips a value of any kind.
func (c *jsonCursor) skipValue() {
	switch first := c.peekByte(); first {
	case '"':
		c.skipString()
	case '{':
		for key := c.enterContainer('{'); key; key = c.nextMember('}') {
			c.readKey()
			c.skipValue()
		}
	case '[':
		for item := c.enterContainer('['); item; item = c.nextMember(']') {
			c.skipValue()
		}
	default:
		from := c.i
		for c.i < len(c.b) && isScalarByte(c.b[c.i]) {
			c.i++
		}
		if c.i == from {
			c.markBad()
		}
	}
}

// isScalarByte reports whether b may be part of a number, true, false or null.
func isScalarByte(b byte) bool {
	return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '-' || b == '+' || b == '.' || b == 'E'
}

func (c *jsonCursor) skipString() {
	for c.i++; c.i < len(c.b); c.i++ {
		switch c.b[c.i] {
		case '\\':
			c.i++
		case '"':
			c.i++
			return
		}
	}
	c.i = len(c.b)
	c.markBad()
}
