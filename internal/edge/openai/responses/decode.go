// Package responses implements the wire format of POST /v1/responses, OpenAI's other API for conversations. A
// request is a list of items, and so is its answer. A stream consists of named events.
//
// The server keeps nothing between requests. It refuses by name every field which refers to stored state
// (previous_response_id, conversation, background, references to items). Every answer has "store": false, also
// if the client leaves "store" out or sets it: such clients get their answer, and send the whole conversation
// with each request.
//
// Reasoning is plain text, the content of items of type reasoning, which clients send back with the rest of the
// conversation. Summaries and encrypted reasoning do not exist.
package responses

import (
	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
)

// Request is a decoded request, with the fields which its answer repeats.
type Request struct {
	*api.Request
	echo echo
}

// Decode decodes the body of a request. The result does not reference body. The error is a *fault.Error of
// code Invalid which names the field.
func Decode(body []byte) (*Request, error) {
	q := &api.Request{Endpoint: api.Responses, AddGenerationPrompt: true, N: 1, Logprobs: -1}
	d := &itemsDecoder{req: &Request{Request: q}}
	d.Req = q
	if err := d.ReadBody(body, func() error { return table.ReadObject(d) }); err != nil {
		return nil, err
	}
	if err := d.checkRequest(); err != nil {
		return nil, err
	}
	return d.req, nil
}

// itemsDecoder decodes one request. In addition to the request it keeps fields whose meaning depends on
// others.
type itemsDecoder struct {
	openai.Extras
	req *Request

	input         bool // given
	streamOptions bool // given
	logprobs      bool // include asks for them
	turn          turn // of the assistant: the input read last belongs to it
	tools         []tool
	choice        choice
	count         api.MediaCount
	parts         []api.Part // of the content being decoded
}

// checkRequest validates the request as a whole, and completes it.
func (d *itemsDecoder) checkRequest() error {
	q := d.req
	if err := d.CheckModel(); err != nil {
		return err
	}
	switch {
	case !d.input:
		return fault.InvalidParam("input", "'input' is required: a text, or an array of items")
	case d.streamOptions && !q.Stream:
		return fault.InvalidParam("stream_options", "'stream_options' is allowed only with 'stream': true")
	case q.MaxTokens > 0 && q.MinTokens > q.MaxTokens:
		return fault.InvalidParam("min_tokens", "'min_tokens' (%d) must not exceed 'max_output_tokens' (%d)", q.MinTokens, q.MaxTokens)
	}
	if s := q.echo.instructions; s != nil {
		q.Messages = append([]api.Message{{Role: "system", Content: *s}}, q.Messages...)
	}
	if n := q.echo.topLogprobs; d.logprobs || n > 0 {
		q.Logprobs = n
	}
	if err := d.checkTools(); err != nil {
		return err
	}
	return d.CheckExtras()
}
