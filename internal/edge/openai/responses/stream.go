package responses

import (
	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// stream prints an answer as named events, numbered from 0. Nothing follows the
// last one: it is response.completed, response.incomplete, or an error.
type stream struct {
	answer
	begun bool
	next  int // number of the next event
	run   int // the item that text or reasoning goes to; -1 if none
	call  int // the item that arguments go to; -1 if none
}

// Append implements api.Writer. Pieces of text, reasoning and arguments allocate
// only if dst, or the memory of the whole answer, must grow.
func (s *stream) Append(dst []byte, c *api.Chunk) []byte {
	dst = s.begin(dst)
	had := len(s.items())
	s.add(c)
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
		return s.appendAdded(dst, had)
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

// End implements api.Writer. A stream that nothing was appended to says nothing.
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

// Fail implements api.Writer: the response as far as it came, and then the error
// in the form that clients raise.
func (s *stream) Fail(dst []byte, err error) []byte {
	f := api.AsFault(err)
	dst = s.begin(dst)
	dst = s.appendStep(dst, "response.failed", failed, appendFailure(nil, f))

	return closeEvent(appendFault(s.openEvent(dst, "error"), f))
}

// AppendErrorEvent appends the event that ends the broken stream of an answer which somebody
// else numbered: it has number 0.
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

// appendFailure appends the object "error" of a response, whose codes are a closed
// set of OpenAI's.
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

// begin appends the events that come before anything else.
func (s *stream) begin(dst []byte) []byte {
	if s.begun {
		return dst
	}
	s.begun = true
	dst = s.appendStep(dst, "response.created", inProgress, nil)
	return s.appendStep(dst, "response.in_progress", inProgress, nil)
}

// appendStep appends an event that has the whole response.
func (s *stream) appendStep(dst []byte, name string, is status, failure []byte) []byte {
	dst = s.openEvent(dst, name)
	dst = append(dst, `,"response":`...)
	dst = s.appendResponse(dst, is, failure)
	return closeEvent(dst)
}

// appendAdded appends the event that begins an item.
func (s *stream) appendAdded(dst []byte, i int) []byte {
	dst = s.openEvent(dst, "response.output_item.added")
	dst = appendIndex(dst, i)
	dst = append(dst, `,"item":`...)
	dst = s.appendItem(dst, i, inProgress)
	return closeEvent(dst)
}

// appendDone appends the event that ends an item.
func (s *stream) appendDone(dst []byte, i int, is status) []byte {
	dst = s.openEvent(dst, "response.output_item.done")
	dst = appendIndex(dst, i)
	dst = append(dst, `,"item":`...)
	dst = s.appendItem(dst, i, is)
	return closeEvent(dst)
}

// openRun begins a message or reasoning, and its one part.
func (s *stream) openRun(dst []byte, i int) []byte {
	s.run = i
	dst = s.appendAdded(dst, i)
	return s.appendPartEvent(dst, "response.content_part.added", i, inProgress)
}

// closeRun ends the message or the reasoning that is open, if one is.
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
	return s.appendDone(dst, i, is)
}

// closeCall ends the call that is open, if one is.
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
	return s.appendDone(dst, i, s.itemStatus(i, incomplete))
}

// appendPiece appends the event of a piece of text or reasoning. Log-probabilities
// without text are a piece of an open message.
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
		dst = append(dst, elements(all[len(all)-s.fresh:])...)
	}
	dst = append(dst, ']')
	return appendDelta(dst, c.Text)
}

// appendPartEvent appends an event that has the part of a message or of reasoning.
func (s *stream) appendPartEvent(dst []byte, name string, i int, is status) []byte {
	dst = s.openEvent(dst, name)
	dst = s.appendPartPlace(dst, i)
	dst = append(dst, `,"part":`...)
	dst = s.appendPart(dst, i, is)
	return closeEvent(dst)
}

// appendPlace appends which item an event is about.
func (s *stream) appendPlace(dst []byte, i int) []byte {
	dst = append(dst, `,"item_id":"`...)
	dst = s.appendItemID(dst, i)
	dst = append(dst, '"')
	return appendIndex(dst, i)
}

// appendPartPlace appends which part of which item an event is about: each has one.
func (s *stream) appendPartPlace(dst []byte, i int) []byte {
	return append(s.appendPlace(dst, i), `,"content_index":0`...)
}

func appendIndex(dst []byte, i int) []byte {
	return strictjson.AppendInt(dst, `,"output_index":`, i)
}

// appendDelta appends a piece and ends its event.
func appendDelta(dst, piece []byte) []byte {
	dst = strictjson.AppendMember(dst, `,"delta":`, piece)
	return closeEvent(dst)
}

// openEvent begins an event and its object.
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
