package anthropic

import (
	"encoding/json"
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// NewWriter returns a writer of the answer to a request, streamed or whole. Requests of this API have one
// choice.
func NewWriter(q *api.Request, h *api.Head) api.Writer {
	if q.Stream {
		return &streamWriter{head: h, openBlock: noBlock, callBlock: noBlock}
	}
	return &bodyWriter{head: h}
}

// AppendCount appends the answer of /v1/messages/count_tokens: the number of prompt tokens.
func AppendCount(dst []byte, tokens int) []byte {
	dst = strictjson.AppendInt(dst, `{"input_tokens":`, tokens)
	return append(dst, '}')
}

// bodyWriter collects the chunks of one answer and prints the whole answer at its end.
type bodyWriter struct {
	head   *api.Head
	fold   api.Fold
	tokens api.TokenCounts // known so far
}

// Append implements api.Writer. It prints nothing: a whole answer is printed by End.
func (b *bodyWriter) Append(dst []byte, c *api.Chunk) []byte {
	b.fold.AddChunk(c)
	if c.Kind == api.Role || c.Kind == api.Usage {
		b.tokens = c.Tokens
	}
	return dst
}

// Fail implements api.Writer. Nothing has been printed yet, so the error is the whole answer.
func (b *bodyWriter) Fail(dst []byte, err error) []byte { return appendError(dst, err, b.head.ID) }

// End implements api.Writer. An answer without a Finish chunk has a stop_reason of null.
func (b *bodyWriter) End(dst []byte) []byte {
	var choice api.FoldedChoice
	if len(b.fold.Choices) > 0 {
		choice = b.fold.Choices[0]
	}
	dst = appendOpening(dst, b.head)
	dst = append(dst, `,"content":[`...)
	for i := range choice.Items {
		dst = strictjson.AppendComma(dst, i)
		dst = appendContentBlock(dst, &choice.Items[i])
	}
	dst = append(dst, `],`...)
	dst = appendStopReason(dst, choice.Reason, choice.StopString)
	dst = append(dst, `,"usage":`...)
	dst = appendUsage(dst, b.tokens)
	dst = api.AppendExt(dst, b.fold.Ext)
	return append(dst, '}')
}

// appendOpening appends the start of a message, with the members which are known before its first token.
func appendOpening(dst []byte, h *api.Head) []byte {
	dst = strictjson.AppendMember(dst, `{"id":`, "msg_"+h.ID)
	return strictjson.AppendMember(dst, `,"type":"message","role":"assistant","model":`, h.Model)
}

// appendContentBlock appends one content block.
func appendContentBlock(dst []byte, it *api.AnswerItem) []byte {
	switch it.Kind {
	case api.Reasoning:
		dst = strictjson.AppendMember(dst, `{"type":"thinking","thinking":`, it.Text)
		return append(dst, `,"signature":""}`...)
	case api.CallBegin:
		dst = appendToolUse(dst, it.CallID, it.Name)
		return appendInput(dst, it.Text)
	}
	dst = strictjson.AppendMember(dst, `{"type":"text","text":`, it.Text)
	return append(dst, '}')
}

// appendToolUse appends a call up to the value of its input.
func appendToolUse(dst []byte, id, name string) []byte {
	dst = strictjson.AppendMember(dst, `{"type":"tool_use","id":`, id)
	dst = strictjson.AppendMember(dst, `,"name":`, name)
	return append(dst, `,"input":`...)
}

// appendInput appends a call's arguments and the closing brace. The API requires an object. If the model
// wrote anything else, for instance because it reached the token limit within the arguments, the input is
// empty and the text is kept in the string partial_json, its name in a stream. It is not repaired, because
// half of the arguments may have an unintended effect.
func appendInput(dst, arguments []byte) []byte {
	switch first := firstByte(arguments); {
	case first == 0:
		return append(dst, `{}}`...)
	case first == '{' && json.Valid(arguments):
		dst = append(dst, arguments...)
		return append(dst, '}')
	}
	dst = strictjson.AppendMember(dst, `{},"partial_json":`, arguments)
	return append(dst, '}')
}

// firstByte returns the first byte which is not JSON white space; 0 if there is none.
func firstByte(text []byte) byte {
	for _, c := range text {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}

// appendStopReason appends the reason why an answer ended.
func appendStopReason(dst []byte, r api.FinishReason, stop string) []byte {
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
	return strictjson.AppendOptional(dst, `,"stop_sequence":`, stop)
}

// appendInputUsage appends the start of a usage object with the cost of the prompt. input_tokens are the
// computed tokens, or all if the number of cached ones is unknown. Cache creation is 0, since it costs
// nothing.
func appendInputUsage(dst []byte, t api.TokenCounts) []byte {
	dst = append(dst, `{"input_tokens":`...)
	if t.Cached == api.CachedUnknown {
		dst = strconv.AppendInt(dst, int64(t.Prompt), 10)
		return append(dst, `,"cache_creation_input_tokens":0`...)
	}
	dst = strconv.AppendInt(dst, int64(t.Prompt-t.Cached), 10)
	return strictjson.AppendInt(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`, t.Cached)
}

func appendUsage(dst []byte, t api.TokenCounts) []byte {
	dst = appendInputUsage(dst, t)
	dst = strictjson.AppendInt(dst, `,"output_tokens":`, t.Completion)
	dst = strictjson.AppendInt(dst, `,"output_tokens_details":{"thinking_tokens":`, t.Reasoning)
	return append(dst, `}}`...)
}
