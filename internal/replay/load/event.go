package load

import (
	"bytes"
	"errors"

	"penstock/internal/strictjson"
)

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
	c := eventCursor{strictjson.NewCursor(data)}
	var out streamChunk
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "choices":
			for c.OpenIfAny('['); c.More(']'); {
				c.parseChoice(&out)
			}
		case "usage":
			c.parseUsage(&out.tokenUsage)
		case "error":
			if c.NextIs('n') {
				c.Skip()
				break
			}
			out.failed = true
			c.parseFailure(&out)
		default:
			c.Skip()
		}
	}
	if c.End() != nil {
		return streamChunk{}, errJSON
	}
	return out, nil
}

// eventCursor is a cursor over the data of an event.
type eventCursor struct{ strictjson.Cursor }

func (c *eventCursor) parseChoice(out *streamChunk) {
	for c.OpenIfAny('{'); c.More('}'); {
		switch string(c.Key()) {
		case "text":
			out.text = c.skipNonEmpty() || out.text
		case "delta", "message":
			for c.OpenIfAny('{'); c.More('}'); {
				switch string(c.Key()) {
				case "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call":
					out.text = c.skipNonEmpty() || out.text
				default:
					c.Skip()
				}
			}
		case "finish_reason":
			out.finished = c.NextIs('"') || out.finished
			c.Skip()
		default:
			c.Skip()
		}
	}
}

func (c *eventCursor) parseUsage(out *tokenUsage) {
	var prompt, completion bool
	for c.OpenIfAny('{'); c.More('}'); {
		switch string(c.Key()) {
		case "prompt_tokens":
			out.prompt, prompt = c.readCount()
		case "completion_tokens":
			out.output, completion = c.readCount()
		case "prompt_tokens_details":
			for c.OpenIfAny('{'); c.More('}'); {
				if string(c.Key()) == "cached_tokens" {
					out.cache, out.reportedCached = c.readCount()
					continue
				}
				c.Skip()
			}
		default:
			c.Skip()
		}
	}
	out.reported = out.reported || prompt && completion
}

// parseFailure checks an error's value for signs of a server without room.
func (c *eventCursor) parseFailure(out *streamChunk) {
	for c.OpenIfAny('{'); c.More('}'); {
		switch string(c.Key()) {
		case "type", "code", "status":
			word := bytes.Trim(c.Raw(), " \t\r\n\"")
			out.overloaded = out.overloaded || string(word) == "503" || string(word) == "529" ||
				bytes.Contains(word, []byte("overloaded")) || bytes.Contains(word, []byte("unavailable"))
		default:
			c.Skip()
		}
	}
}

// skipNonEmpty skips a value and reports whether it is a non-empty string, array or object.
func (c *eventCursor) skipNonEmpty() bool {
	switch raw := c.Raw(); {
	case raw == nil:
		return false
	case raw[0] == '"':
		return len(raw) > 2
	case raw[0] == '[' || raw[0] == '{':
		return len(bytes.Trim(raw[1:len(raw)-1], " \t\r\n")) > 0
	}
	return false
}

// readCount reads a count; false if it is not a plausible one.
func (c *eventCursor) readCount() (int, bool) {
	n, ok := parseNumber(c.Raw())
	return int(min(n, maxCount)), ok
}
