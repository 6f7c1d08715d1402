package anthropic

import (
	"encoding/json"
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// NewWriter returns what prints the answer of a request: as a stream, or whole.
// Requests of this API have one choice.
func NewWriter(q *api.Request, h *api.Head) api.Writer {
	if q.Stream {
		return &stream{head: h, open: noBlock, call: noBlock}
	}
	return &body{head: h}
}

// AppendCount appends the answer of /v1/messages/count_tokens: how many tokens the
// prompt has.
func AppendCount(dst []byte, tokens int) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(tokens), 10)
	return append(dst, '}')
}

// body collects the chunks of one answer into the whole answer.
type body struct {
	head   *api.Head
	fold   api.Fold
	tokens api.TokenCounts // as far as they are known
}

// Append implements api.Writer: a whole answer has nothing to say before its end.
func (b *body) Append(dst []byte, c *api.Chunk) []byte {
	b.fold.Add(c)
	if c.Kind == api.Role || c.Kind == api.Usage {
		b.tokens = c.Tokens
	}
	return dst
}

// Fail implements api.Writer: what is sent whole is not begun before it is complete.
func (b *body) Fail(dst []byte, err error) []byte { return appendError(dst, err, b.head.ID) }

// End implements api.Writer. An answer whose Finish has not been added has a
// stop_reason of null.
func (b *body) End(dst []byte) []byte {
	var choice api.Choice
	if len(b.fold.Choices) > 0 {
		choice = b.fold.Choices[0]
	}
	dst = appendOpening(dst, b.head)
	dst = append(dst, `,"content":[`...)
	for i := range choice.Items {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendItem(dst, &choice.Items[i])
	}
	dst = append(dst, `],`...)
	dst = appendStop(dst, choice.Reason, choice.StopString)
	dst = append(dst, `,"usage":`...)
	dst = appendUsage(dst, b.tokens)
	dst = api.AppendExt(dst, b.fold.Ext)
	return append(dst, '}')
}

// appendOpening appends the brace that opens a message, and what is known of it
// before its first token.
func appendOpening(dst []byte, h *api.Head) []byte {
	dst = append(dst, `{"id":`...)
	dst = strictjson.AppendString(dst, "msg_"+h.ID)
	dst = append(dst, `,"type":"message","role":"assistant","model":`...)
	return strictjson.AppendString(dst, h.Model)
}

// appendItem appends one content block.
func appendItem(dst []byte, it *api.Item) []byte {
	switch it.Kind {
	case api.Reasoning:
		dst = append(dst, `{"type":"thinking","thinking":`...)
		dst = strictjson.AppendString(dst, it.Text)
		return append(dst, `,"signature":""}`...)
	case api.CallBegin:
		dst = appendToolUse(dst, it.CallID, it.Name)
		return appendInput(dst, it.Text)
	}
	dst = append(dst, `{"type":"text","text":`...)
	dst = strictjson.AppendString(dst, it.Text)
	return append(dst, '}')
}

// appendToolUse appends a call up to the value of its input.
func appendToolUse(dst []byte, id, name string) []byte {
	dst = append(dst, `{"type":"tool_use","id":`...)
	dst = strictjson.AppendString(dst, id)
	dst = append(dst, `,"name":`...)
	dst = strictjson.AppendString(dst, name)
	return append(dst, `,"input":`...)
}

// appendInput appends a call's arguments and the brace that closes it. The API has
// them as an object. What the model wrote instead, for instance because it came to
// the limit of tokens in the middle, is kept as a string beside an empty one, under
// the name that it has in a stream: it is not mended, since half of the arguments
// may do what was never meant.
func appendInput(dst, arguments []byte) []byte {
	switch first := firstByte(arguments); {
	case first == 0:
		return append(dst, `{}}`...)
	case first == '{' && json.Valid(arguments):
		dst = append(dst, arguments...)
		return append(dst, '}')
	}
	dst = append(dst, `{},"partial_json":`...)
	dst = strictjson.AppendString(dst, arguments)
	return append(dst, '}')
}

// firstByte returns the first byte that is no white space of JSON; 0 if none.
func firstByte(text []byte) byte {
	for _, c := range text {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}

// appendStop appends why an answer ended.
func appendStop(dst []byte, r api.Reason, stop string) []byte {
	dst = append(dst, `"stop_reason":`...)
	switch {
	case stop != "":
		dst = append(dst, `"stop_sequence"`...)
	case r == api.ReasonStop:
		dst = append(dst, `"end_turn"`...)
	case r == api.ReasonLength:
		dst = append(dst, `"max_tokens"`...)
	case r == api.ReasonCalls:
		dst = append(dst, `"tool_use"`...)
	default:
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"stop_sequence":`...)
	if stop == "" {
		return append(dst, "null"...)
	}
	return strictjson.AppendString(dst, stop)
}

// appendInputUsage appends the brace that opens a usage, and what the prompt cost:
// input_tokens are those that were computed, or all if nobody knows which. Nothing is
// said to be written to a cache, since that costs nobody anything.
func appendInputUsage(dst []byte, t api.TokenCounts) []byte {
	dst = append(dst, `{"input_tokens":`...)
	if t.Cached == api.CachedUnknown {
		dst = strconv.AppendInt(dst, int64(t.Prompt), 10)
		return append(dst, `,"cache_creation_input_tokens":0`...)
	}
	dst = strconv.AppendInt(dst, int64(t.Prompt-t.Cached), 10)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	return strconv.AppendInt(dst, int64(t.Cached), 10)
}

func appendUsage(dst []byte, t api.TokenCounts) []byte {
	dst = appendInputUsage(dst, t)
	dst = append(dst, `,"output_tokens":`...)
	dst = strconv.AppendInt(dst, int64(t.Completion), 10)
	dst = append(dst, `,"output_tokens_details":{"thinking_tokens":`...)
	dst = strconv.AppendInt(dst, int64(t.Reasoning), 10)
	return append(dst, `}}`...)
}
