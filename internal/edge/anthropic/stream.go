package anthropic

import (
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// noBlock is the index which means that there is no content block.
const noBlock = -1

// streamWriter prints an answer event by event. Content blocks follow each other; the first chunk of another
// kind starts a new block.
type streamWriter struct {
	head    *api.Head
	started bool // message_start was printed

	blocks    int           // started so far
	openBlock int           // the index of the open block; noBlock if there is none
	openKind  api.ChunkKind // of the open block: Text, Reasoning or CallBegin
	callBlock int           // the index of the last call's block, to which late arguments belong

	// The end of the answer: Finish sets a part of it, Usage the rest.
	reason     api.FinishReason
	stopString string
	ext        *api.AnswerExt
	tokens     api.TokenCounts
	endPrinted bool // message_delta was printed
}

// Append implements api.Writer. It allocates only if dst must grow.
func (s *streamWriter) Append(dst []byte, c *api.Chunk) []byte {
	if !s.started {
		s.tokens = c.Tokens // of the prompt
		dst = s.appendMessageStart(dst)
	}
	switch c.Kind {
	case api.Text, api.Reasoning:
		if len(c.Text) == 0 {
			return dst // log-probabilities only, which this API does not have
		}
		return s.appendText(dst, c)
	case api.CallBegin:
		return s.appendCall(dst, c)
	case api.Arguments:
		if s.callBlock == noBlock || len(c.Text) == 0 {
			return dst
		}
		return appendBlockDelta(dst, s.callBlock, `"input_json_delta","partial_json":`, c.Text)
	case api.CallEnd:
		if s.openBlock != noBlock && s.openBlock == s.callBlock {
			dst = s.appendBlockStop(dst)
		}
	case api.Finish:
		s.reason, s.stopString = c.Reason, c.StopString
		s.keepExt(c)
		dst = s.appendBlockStop(dst)
	case api.Usage:
		s.tokens = c.Tokens
		s.keepExt(c)
		dst = s.appendMessageDelta(dst)
	}
	return dst
}

// keepExt keeps c's Ext for the end.
func (s *streamWriter) keepExt(c *api.Chunk) {
	if c.Ext != nil {
		s.ext = c.Ext
	}
}

// End implements api.Writer. Without a Usage chunk it prints the counts known so far.
func (s *streamWriter) End(dst []byte) []byte {
	if !s.started {
		dst = s.appendMessageStart(dst)
	}
	if !s.endPrinted {
		dst = s.appendMessageDelta(dst)
	}
	return append(dst, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

// Fail implements api.Writer.
func (s *streamWriter) Fail(dst []byte, err error) []byte {
	return AppendErrorEvent(dst, s.head.ID, err)
}

// AppendErrorEvent appends the event which ends a failed stream. requestID is the id of the request.
func AppendErrorEvent(dst []byte, requestID string, err error) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = appendError(dst, err, requestID)
	return append(dst, "\n\n"...)
}

// appendMessageStart appends the event with the message without its content.
func (s *streamWriter) appendMessageStart(dst []byte) []byte {
	s.started = true
	dst = append(dst, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":"...)
	dst = appendOpening(dst, s.head)
	dst = append(dst, `,"content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	dst = appendInputUsage(dst, s.tokens)
	return append(dst, ",\"output_tokens\":0}}}\n\n"...)
}

// appendText appends text or reasoning, in a block of its kind.
func (s *streamWriter) appendText(dst []byte, c *api.Chunk) []byte {
	if s.openBlock == noBlock || s.openKind != c.Kind {
		dst = s.appendBlockStart(dst, c.Kind)
		if c.Kind == api.Text {
			dst = append(dst, `{"type":"text","text":""}`...)
		} else {
			dst = append(dst, `{"type":"thinking","thinking":"","signature":""}`...)
		}
		dst = append(dst, "}\n\n"...)
	}
	if c.Kind == api.Text {
		return appendBlockDelta(dst, s.openBlock, `"text_delta","text":`, c.Text)
	}
	return appendBlockDelta(dst, s.openBlock, `"thinking_delta","thinking":`, c.Text)
}

// appendCall starts the block of a call.
func (s *streamWriter) appendCall(dst []byte, c *api.Chunk) []byte {
	dst = s.appendBlockStart(dst, api.CallBegin)
	s.callBlock = s.openBlock
	dst = appendToolUse(dst, c.CallID, c.Name)
	return append(dst, "{}}}\n\n"...)
}

// appendBlockStart closes the open block and starts the next, up to the value of content_block.
func (s *streamWriter) appendBlockStart(dst []byte, kind api.ChunkKind) []byte {
	dst = s.appendBlockStop(dst)
	s.openBlock, s.openKind = s.blocks, kind
	s.blocks++
	dst = strictjson.AppendInt(dst, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":", s.openBlock)
	return append(dst, `,"content_block":`...)
}

// appendBlockStop ends the open block, if any. A thinking block gets its signature, which is empty, because
// clients which return thinking expect one.
func (s *streamWriter) appendBlockStop(dst []byte) []byte {
	if s.openBlock == noBlock {
		return dst
	}
	if s.openKind == api.Reasoning {
		dst = appendBlockDelta(dst, s.openBlock, `"signature_delta","signature":`, nil)
	}
	dst = strictjson.AppendInt(dst, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":", s.openBlock)
	s.openBlock = noBlock
	return append(dst, "}\n\n"...)
}

// appendBlockDelta appends a delta of a block. opening is the delta's type and the key of its text.
func appendBlockDelta(dst []byte, index int, opening string, text []byte) []byte {
	dst = strictjson.AppendInt(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":", index)
	dst = append(dst, `,"delta":{"type":`...)
	dst = append(dst, opening...)
	dst = strictjson.AppendString(dst, text)
	return append(dst, "}}\n\n"...)
}

// appendMessageDelta appends the event with the stop reason and the usage.
func (s *streamWriter) appendMessageDelta(dst []byte) []byte {
	s.endPrinted = true
	dst = s.appendBlockStop(dst)
	dst = append(dst, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	dst = appendStopReason(dst, s.reason, s.stopString)
	dst = append(dst, `},"usage":`...)
	dst = appendUsage(dst, s.tokens)
	dst = api.AppendExt(dst, s.ext)
	return append(dst, "}\n\n"...)
}
