package responses

import (
	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// stream prints an answer as named events, numbered from 0. The last event is response.completed,
// response.incomplete or error.
type stream struct {
	answer
	begun bool
	next  int // number of the next event
	run   int // index of the open message or reasoning; -1 if none
	call  int // index of the open call; -1 if none
}

// Append implements api.Writer. Pieces of text, reasoning and arguments allocate only if dst or the memory of
// the whole answer must grow.
func (s *stream) Append(dst []byte, c *api.Chunk) []byte {
	dst = s.begin(dst)
	had := len(s.items())
	s.addChunk(c)
	opens := len(s.items()) > had
	switch c.Kind {
	case api.Text, api.Reasoning:
		if opens {
			dst = s.closeRun(dst, completed)
			dst = s.openRun(dst, had)
		}
		return s.appendPiece(dst, c)
	case api.CallBegin:
		dst = s.closeRun(dst, completed)
		dst = s.closeCall(dst)
		s.call = had
		return s.appendItemEvent(dst, "response.output_item.added", had, inProgress)
	case api.Arguments:
		if s.call < 0 {
			return dst
		}
		dst = s.openEvent(dst, "response.function_call_arguments.delta")
		dst = s.appendPlace(dst, s.call)
		return appendDelta(dst, c.Text)
	case api.CallEnd:
		return s.closeCall(dst)
	}
	return dst
}

// End implements api.Writer. It prints nothing if nothing was appended before.
func (s *stream) End(dst []byte) []byte {
	if !s.begun {
		return dst
	}
	end := s.outcome()
	dst = s.closeCall(dst)
	if s.run >= 0 {
		dst = s.closeRun(dst, s.itemStatus(s.run, end))
	}
	return s.appendStep(dst, "response."+string(end), end, nil)
}

// Fail implements api.Writer. It prints the response so far, and then the error in the form which clients
// raise.
func (s *stream) Fail(dst []byte, err error) []byte {
	f := api.AsFault(err)
	dst = s.begin(dst)
	dst = s.appendStep(dst, "response.failed", failed, appendFailure(nil, f))

	return closeEvent(appendFault(s.openEvent(dst, "error"), f))
}

// AppendErrorEvent appends the event which ends the failed stream of an answer which an engine printed. It has
// number 0.
func AppendErrorEvent(dst []byte, err error) []byte {
	dst = append(dst, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":0"...)
	return closeEvent(appendFault(dst, api.AsFault(err)))
}

// appendFault appends the members of an event of type "error".
func appendFault(dst []byte, f *fault.Error) []byte {
	dst = strictjson.AppendMember(dst, `,"code":`, f.Code.Class().Name)
	dst = strictjson.AppendMember(dst, `,"message":`, f.Message)
	dst = strictjson.AppendOptional(dst, `,"param":`, f.Param)
	object := openai.AppendError(nil, f)
	dst = append(dst, ',')
	return append(dst, object[1:len(object)-1]...) // its one member
}

// appendFailure appends the object "error" of a response. OpenAI defines a closed set of codes.
func appendFailure(dst []byte, f *fault.Error) []byte {
	code := "server_error"
	switch f.Code {
	case fault.Limited:
		code = "rate_limit_exceeded"
	case fault.Invalid:
		code = "invalid_prompt"
	}
	dst = append(dst, `{"code":"`...)
	dst = append(dst, code...)
	dst = strictjson.AppendMember(dst, `","message":`, f.Message)
	return append(dst, '}')
}

// begin appends the first events of a stream, once.
func (s *stream) begin(dst []byte) []byte {
	if s.begun {
		return dst
	}
	s.begun = true
	dst = s.appendStep(dst, "response.created", inProgress, nil)
	return s.appendStep(dst, "response.in_progress", inProgress, nil)
}

// appendStep appends an event with the whole response.
func (s *stream) appendStep(dst []byte, name string, is status, failure []byte) []byte {
	dst = s.openEvent(dst, name)
	dst = append(dst, `,"response":`...)
	dst = s.appendResponse(dst, is, failure)
	return closeEvent(dst)
}

// appendItemEvent appends an event with a whole item.
func (s *stream) appendItemEvent(dst []byte, name string, i int, is status) []byte {
	dst = appendIndex(s.openEvent(dst, name), i)
	dst = s.appendItem(append(dst, `,"item":`...), i, is)
	return closeEvent(dst)
}

// openRun opens a message or reasoning, and its part.
func (s *stream) openRun(dst []byte, i int) []byte {
	s.run = i
	dst = s.appendItemEvent(dst, "response.output_item.added", i, inProgress)
	return s.appendPartEvent(dst, "response.content_part.added", i, inProgress)
}

// closeRun closes the open message or reasoning, if there is one.
func (s *stream) closeRun(dst []byte, is status) []byte {
	i := s.run
	if i < 0 {
		return dst
	}
	s.run = -1
	it := &s.items()[i]
	if it.Kind == api.Text {
		dst = s.openEvent(dst, "response.output_text.done")
	} else {
		dst = s.openEvent(dst, "response.reasoning_text.done")
	}
	dst = s.appendPartPlace(dst, i)
	dst = strictjson.AppendMember(dst, `,"text":`, it.Text)
	if it.Kind == api.Text {
		dst = append(dst, `,"logprobs":[`...)
		dst = append(dst, s.logprobsOf(i)...)
		dst = append(dst, ']')
	}
	dst = closeEvent(dst)
	dst = s.appendPartEvent(dst, "response.content_part.done", i, is)
	return s.appendItemEvent(dst, "response.output_item.done", i, is)
}

// closeCall closes the open call, if there is one.
func (s *stream) closeCall(dst []byte) []byte {
	i := s.call
	if i < 0 {
		return dst
	}
	s.call = -1
	it := &s.items()[i]
	dst = s.openEvent(dst, "response.function_call_arguments.done")
	dst = s.appendPlace(dst, i)
	dst = strictjson.AppendMember(dst, `,"name":`, it.Name)
	dst = strictjson.AppendMember(dst, `,"arguments":`, it.Text)
	dst = closeEvent(dst)
	return s.appendItemEvent(dst, "response.output_item.done", i, s.itemStatus(i, incomplete))
}

// appendPiece appends the event of a piece of text or reasoning. Log-probabilities without a text are a piece of
// the open message.
func (s *stream) appendPiece(dst []byte, c *api.Chunk) []byte {
	if len(c.Text) == 0 && (c.Kind != api.Text || s.fresh == 0) {
		return dst
	}
	if c.Kind == api.Reasoning {
		dst = s.openEvent(dst, "response.reasoning_text.delta")
		dst = s.appendPartPlace(dst, s.run)
		return appendDelta(dst, c.Text)
	}
	dst = s.openEvent(dst, "response.output_text.delta")
	dst = s.appendPartPlace(dst, s.run)
	dst = append(dst, `,"logprobs":[`...)
	if s.fresh > 0 {
		all := s.logprobs[s.run]
		dst = append(dst, trimComma(all[len(all)-s.fresh:])...)
	}
	dst = append(dst, ']')
	return appendDelta(dst, c.Text)
}

// appendPartEvent appends an event with the part of a message or of reasoning.
func (s *stream) appendPartEvent(dst []byte, name string, i int, is status) []byte {
	dst = s.openEvent(dst, name)
	dst = s.appendPartPlace(dst, i)
	dst = append(dst, `,"part":`...)
	dst = s.appendPart(dst, i, is)
	return closeEvent(dst)
}

// appendPlace appends the members which identify the item of an event.
func (s *stream) appendPlace(dst []byte, i int) []byte {
	dst = append(dst, `,"item_id":"`...)
	dst = s.appendItemID(dst, i)
	dst = append(dst, '"')
	return appendIndex(dst, i)
}

// appendPartPlace appends the members which identify the part of an event. Each item has one part.
func (s *stream) appendPartPlace(dst []byte, i int) []byte {
	return append(s.appendPlace(dst, i), `,"content_index":0`...)
}

func appendIndex(dst []byte, i int) []byte {
	return strictjson.AppendInt(dst, `,"output_index":`, i)
}

// appendDelta appends a piece and closes its event.
func appendDelta(dst, piece []byte) []byte {
	dst = strictjson.AppendMember(dst, `,"delta":`, piece)
	return closeEvent(dst)
}

// openEvent opens an event and its object.
func (s *stream) openEvent(dst []byte, name string) []byte {
	dst = append(dst, "event: "...)
	dst = append(dst, name...)
	dst = append(dst, "\ndata: {\"type\":\""...)
	dst = append(dst, name...)
	dst = strictjson.AppendInt(dst, `","sequence_number":`, s.next)
	s.next++
	return dst
}

func closeEvent(dst []byte) []byte { return append(dst, "}\n\n"...) }
