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
