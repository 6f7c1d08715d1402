package anthropic

import (
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const (
	maxStops = 32
	maxSalt  = 1024 // bytes

	// maxMessages and maxBlocks bound the memory of a body of tiny messages or blocks: each becomes a struct
	// of up to a hundred bytes.
	maxMessages = 1 << 16
	maxBlocks   = 1 << 16 // in all messages together
)

// Decode decodes the body of POST /v1/messages. The result does not reference body. The error is a
// *fault.Error of code Invalid which names the field.
func Decode(body []byte) (*api.Request, error) {
	d := newRequestDecoder()
	q, err := d.decodeBody(body, d.readCreateField)
	if err == nil && q.MaxTokens == 0 {
		return nil, fault.InvalidParam("max_tokens", "'max_tokens' is required: say how long the answer may be")
	}
	return q, err
}

// DecodeCount decodes the body of POST /v1/messages/count_tokens, which is that of /v1/messages without the
// fields for the answer.
func DecodeCount(body []byte) (*api.Request, error) {
	return newRequestDecoder().decodeBody(body, func(string) (bool, error) { return false, nil })
}

// requestDecoder decodes one request. In addition to the request it keeps fields whose meaning depends on
// others.
type requestDecoder struct {
	*strictjson.Reader
	req *api.Request

	unknown strictjson.UnknownKeys // top-level keys

	blocks     int // so far
	system     string
	turn       chatTurn // the last one, to which further messages of its role are added
	mediaCount api.MediaCount
	names      map[string]string // tool names by the ids of the calls so far
	think      thinkMode
	effort     string
	formats    int // number of fields which request an output format
}

func newRequestDecoder() *requestDecoder {
	return &requestDecoder{req: &api.Request{
		Endpoint:            api.Messages,
		AddGenerationPrompt: true,
		IncludeUsage:        true, // the last event of every stream has it
		N:                   1,
		Logprobs:            -1,
	}}
}

// decodeBody decodes body. own reads the fields which only this endpoint has.
func (d *requestDecoder) decodeBody(body []byte, own func(key string) (known bool, err error)) (*api.Request, error) {
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	d.Reader = r
	err = d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		for _, read := range []func(string) (bool, error){d.readCommonField, d.readUnusedField, own} {
			if known, err := read(key); known || err != nil {
				return err
			}
		}
		d.unknown.Add(key)
		return d.SkipValue()
	})
	if err == nil {
		err = d.CheckEnd()
	}
	if err == nil {
		err = d.checkRequest()
	}
	if err != nil {
		return nil, err
	}
	return d.req, nil
}

// readCommonField reads the fields which define the prompt. Both endpoints have them.
func (d *requestDecoder) readCommonField(key string) (known bool, err error) {
	switch key {
	case "model":
		return true, d.ReadStringInto(&d.req.Model)
	case "messages":
		return true, d.ReadArray("an array of messages", d.readMessage)
	case "system":
		return true, d.readSystemPrompt()
	case "tools":
		return true, d.readTools()
	case "tool_choice":
		return true, d.readToolChoice()
	case "thinking":
		return true, d.readThinking()
	case "output_config":
		return true, d.ReadObject(d.readOutputConfig)
	case "output_format":
		return true, d.readOutputFormat()
	}
	return false, nil
}

// readCreateField reads the fields which control the answer.
func (d *requestDecoder) readCreateField(key string) (known bool, err error) {
	q := d.req
	switch key {
	case "max_tokens":
		return true, d.ReadIntegerInto(&q.MaxTokens, 1, strictjson.MaxCount)
	case "stream":
		return true, d.ReadBoolInto(&q.Stream)
	case "stop_sequences":
		return true, d.readStopSequences()
	case "temperature":
		return true, d.ReadNumberInto(&q.Temperature, 0, 1)
	case "top_p":
		return true, d.ReadNumberInto(&q.TopP, 0, 1)
	case "top_k":
		q.TopK = new(int)
		return true, d.ReadIntegerInto(q.TopK, 0, strictjson.MaxCount)
	case "cache_salt":
		return true, d.readCacheSalt()
	case "metadata", "diagnostics":
		return true, d.readIgnoredObject()
	case "service_tier":
		_, err := d.ReadString()
		return true, err
	case "inference_geo": // global is no restriction
		return true, d.requireString("global")
	case "container", "fallback_credit_token", "thread":
		return true, d.refuseUnsupported()
	case "fallbacks":
		return true, d.requireEmptyArray()
	}
	return false, nil
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
		d.req.Stop = append(d.req.Stop, s)
		return err
	})
}

func (d *requestDecoder) readCacheSalt() error {
	s, err := d.ReadString()
	if err == nil && (s == "" || len(s) > maxSalt) {
		return d.InvalidError("must have between 1 and %d bytes, not %d", maxSalt, len(s))
	}
	d.req.CacheSalt = s
	return err
}

// checkRequest validates the request as a whole, and completes it.
func (d *requestDecoder) checkRequest() error {
	q := d.req
	if err := d.unknown.Err(); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(q.Model) == "":
		return fault.InvalidParam("model", "'model' is required and must not be blank: name one of GET /v1/models")
	case d.formats > 1:
		return fault.InvalidParam("output_format", "'output_format' and 'output_config.format' ask for the same: give one of them")
	}
	if err := d.checkToolChoice(); err != nil {
		return err
	}
	q.TemplateArgs = d.buildTemplateArgs()
	return d.finishMessages()
}
