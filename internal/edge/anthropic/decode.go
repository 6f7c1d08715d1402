// Package anthropic implements the wire format of Anthropic's Messages API: strict decoding of requests to
// POST /v1/messages and /v1/messages/count_tokens, and encoding of answers, streams and errors.
//
// The decoder knows every field which the official client sends. It implements a field, or accepts it because
// ignoring it cannot change the answer, or refuses it by name. It drops nothing silently. Where the API
// depends on Anthropic's own models, this package does the following:
//
//   - Adjacent turns of one role form one turn, as the API specifies. Adjacent blocks of text, or of
//     thinking, are joined by newlines. Blocks separated by a tool call or by thinking are joined without a
//     newline, since the model wrote them as one text.
//   - Tool results become tool messages, before the text of the turn which contains them, with the name of
//     the tool called. An error without a text gets the text "error"; other errors are plain text, since chat
//     templates have no flag for errors.
//   - Thinking is returned to the prompt if the template supports it. Its signature is ignored, and is empty
//     in answers: nothing is signed. Redacted thinking is another server's ciphertext and is dropped.
//   - thinking.budget_tokens is accepted and ignored: no mechanism ends a model's thinking cleanly, and
//     clients which use thinking always send a budget. max_tokens limits thinking and answer together.
//   - cache_control is accepted anywhere: the prefix cache needs no marks. The line
//     "x-anthropic-billing-header: …", which Claude Code puts before its system prompt, is dropped: it is not
//     meant for the model, and it differs in every request, so that no prefix would ever match.
package anthropic

import (
	"penstock/core/fault"
	"penstock/internal/edge/api"
)

const (
	maxStops = 32

	// maxMessages and maxBlocks bound the memory of a body of tiny messages or blocks: each becomes a struct
	// of up to a hundred bytes.
	maxMessages = 1 << 16
	maxBlocks   = 1 << 16 // in all messages together
)

// Decode decodes the body of POST /v1/messages. The result does not reference body. The error is a
// *fault.Error of code Invalid which names the field.
func Decode(body []byte) (*api.Request, error) {
	q, err := decodeBody(createTable, body)
	if err == nil && q.MaxTokens == 0 {
		return nil, fault.InvalidParam("max_tokens", "'max_tokens' is required: say how long the answer may be")
	}
	return q, err
}

// DecodeCount decodes the body of POST /v1/messages/count_tokens, which is that of /v1/messages without the
// fields for the answer.
func DecodeCount(body []byte) (*api.Request, error) { return decodeBody(countTable, body) }

// requestDecoder decodes one request. In addition to the request it keeps fields whose meaning depends on
// others.
type requestDecoder struct {
	api.BodyDecoder

	blocks     int // so far
	system     string
	turn       chatTurn // the last one, to which further messages of its role are added
	mediaCount api.MediaCount
	names      map[string]string // tool names by the ids of the calls so far
	think      thinkMode
	effort     string
	formats    int // number of fields which request an output format
}

// decodeBody decodes body, an object of the fields of t.
func decodeBody(t *api.FieldTable[*requestDecoder], body []byte) (*api.Request, error) {
	d := &requestDecoder{BodyDecoder: api.BodyDecoder{Req: &api.Request{
		Endpoint:            api.Messages,
		AddGenerationPrompt: true,
		IncludeUsage:        true, // the last event of every stream has it
		N:                   1,
		Logprobs:            -1,
	}}}
	if err := t.DecodeBody(d, body); err != nil {
		return nil, err
	}
	if err := d.checkRequest(); err != nil {
		return nil, err
	}
	return d.Req, nil
}

func (d *requestDecoder) readMessages() error {
	return d.ReadArray("an array of messages", d.readMessage)
}

func (d *requestDecoder) readStopSequences() error {
	return d.ReadArray("an array of strings", func(i int) error {
		if i >= maxStops {
			return d.ParentInvalidError("must have at most %d entries", maxStops)
		}
		s, err := d.ReadString()
		if err == nil && s == "" {
			return d.InvalidError("must not be an empty string")
		}
		d.Req.Stop = append(d.Req.Stop, s)
		return err
	})
}

// checkRequest validates the request as a whole, and completes it.
func (d *requestDecoder) checkRequest() error {
	q := d.Req
	if err := d.CheckModel(); err != nil {
		return err
	}
	if d.formats > 1 {
		return fault.InvalidParam("output_format", "'output_format' and 'output_config.format' ask for the same: give one of them")
	}
	if err := d.checkToolChoice(); err != nil {
		return err
	}
	q.TemplateArgs = d.buildTemplateArgs()
	return d.finishMessages()
}
