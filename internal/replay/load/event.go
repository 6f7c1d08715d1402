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
type chunk struct {
	// text reports that a choice has generated content: text, content, reasoning, a refusal or a part of a
	// tool call.
	text bool
	// finished reports that a choice has its finish reason.
	finished bool
	// failed reports that the event is an error; overloaded that the server has no room for the request.
	failed, overloaded bool
	usage
}

// tokenUsage has the server's token counts of a request.
type usage struct {
	reported              bool // prompt and completion
	reportedCached        bool
	prompt, output, cache int
}

// parseChunk reads the data of an event. It looks at names and shapes only, and does not allocate.
func parseChunk(data []byte) (chunk, error) {
	c := cursor{b: data}
	var out chunk
	for key := c.enter('{'); key; key = c.more('}') {
		switch string(c.key()) {
		case "choices":
			for item := c.enterIf('['); item; item = c.more(']') {
				c.choice(&out)
			}
		case "usage":
			c.usage(&out.usage)
		case "error":
			if c.peek() == 'n' {
				c.skip()
				break
			}
			out.failed = true
			c.failure(&out)
		default:
			c.skip()
		}
	}
	c.space()
	if c.bad || c.i != len(data) {
		return chunk{}, errJSON
	}
	return out, nil
}

// jsonCursor walks through JSON. It is strict about the structure and lax about the rest. After the first
// fault bad is set and it does not move.
type cursor struct {
	b     []byte
	i     int
	depth int
	bad   bool
}

func (c *cursor) choice(out *chunk) {
	for key := c.enterIf('{'); key; key = c.more('}') {
		switch string(c.key()) {
		case "text":
			out.text = c.filled() || out.text
		case "delta", "message":
			for key := c.enterIf('{'); key; key = c.more('}') {
				switch string(c.key()) {
				case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call":
					out.text = c.filled() || out.text
				default:
					c.skip()
				}
			}
		case "finish_reason":
			out.finished = c.peek() == '"' || out.finished
			c.skip()
		default:
			c.skip()
		}
	}
}

func (c *cursor) usage(out *usage) {
	var prompt, completion bool
	for key := c.enterIf('{'); key; key = c.more('}') {
		switch string(c.key()) {
		case "prompt_tokens":
			out.prompt, prompt = c.count()
		case "completion_tokens":
			out.output, completion = c.count()
		case "prompt_tokens_details":
			for key := c.enterIf('{'); key; key = c.more('}') {
				if string(c.key()) == "cached_tokens" {
					out.cache, out.reportedCached = c.count()
					continue
				}
				c.skip()
			}
		default:
			c.skip()
		}
	}
	out.reported = out.reported || prompt && completion
}

// parseFailure checks an error's value for signs of a server without room.
func (c *cursor) failure(out *chunk) {
	for key := c.enterIf('{'); key; key = c.more('}') {
		switch string(c.key()) {
		case "type", "code", "status":
			from := c.i
			c.skip()
			word := bytes.Trim(c.b[from:c.i], " \t\r\n\"")
			out.overloaded = out.overloaded || string(word) == "503" || string(word) == "529" ||
				bytes.Contains(word, []byte("overloaded")) || bytes.Contains(word, []byte("unavailable"))
		default:
			c.skip()
		}
	}
}

func (c *cursor) space() {
	for c.i < len(c.b) && (c.b[c.i] == ' ' || c.b[c.i] == '\t' || c.b[c.i] == '\n' || c.b[c.i] == '\r') {
		c.i++
	}
}

// peekByte returns the first byte of the next value; 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.bad || c.i == len(c.b) {
		return 0
	}
	return c.b[c.i]
}

func (c *cursor) fail() { c.bad = true }

// enterContainer enters an object or an array, and reports whether it has a member.
func (c *cursor) enter(open byte) bool {
	if c.peek() != open || c.depth == maxDepth {
		c.fail()
		return false
	}
	c.i++
	c.depth++
	if c.peek() == open+2 { // '{' and '}', '[' and ']' are two apart
		c.i++
		c.depth--
		return false
	}
	return !c.bad
}

// enterOrSkip enters a container if there is one, and otherwise skips the value.
func (c *cursor) enterIf(open byte) bool {
	if c.peek() == open {
		return c.enter(open)
	}
	c.skip()
	return false
}

// nextMember moves to the next member, or leaves the container.
func (c *cursor) more(end byte) bool {
	switch c.peek() {
	case ',':
		c.i++
		return true
	case end:
		c.i++
		c.depth--
		return false
	}
	c.fail()
	return false
}

// readKey reads a name and the colon after it, and returns the name as written.
func (c *cursor) key() []byte {
	if c.peek() != '"' {
		c.fail()
		return nil
	}
	from := c.i + 1
	c.skipString()
	to := c.i - 1
	if c.peek() != ':' {
		c.fail()
		return nil
	}
	c.i++
	return c.b[from:to]
}

// skipNonEmpty skips a value and reports whether it is a non-empty string, array or object.
func (c *cursor) filled() bool {
	from := c.peek()
	start := c.i
	c.skip()
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
func (c *cursor) count() (int, bool) {
	c.space()
	from := c.i
	c.skip()
	n, ok := number(c.b[from:c.i])
	return int(min(n, maxCount)), ok
}

// skipValue skips a value of any kind.
func (c *cursor) skip() {
	switch first := c.peek(); first {
	case '"':
		c.skipString()
	case '{':
		for key := c.enter('{'); key; key = c.more('}') {
			c.key()
			c.skip()
		}
	case '[':
		for item := c.enter('['); item; item = c.more(']') {
			c.skip()
		}
	default:
		from := c.i
		for c.i < len(c.b) && scalar(c.b[c.i]) {
			c.i++
		}
		if c.i == from {
			c.fail()
		}
	}
}

// isScalarByte reports whether b may be part of a number, true, false or null.
func scalar(b byte) bool {
	return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '-' || b == '+' || b == '.' || b == 'E'
}

func (c *cursor) skipString() {
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
	c.fail()
}
