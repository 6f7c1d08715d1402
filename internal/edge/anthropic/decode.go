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
	d := newDecoder()
	q, err := d.decode(body, d.create)
	if err == nil && q.MaxTokens == 0 {
		return nil, fault.Param("max_tokens", "'max_tokens' is required: say how long the answer may be")
	}
	return q, err
}

// DecodeCount decodes the body of POST /v1/messages/count_tokens, which is that of /v1/messages without the
// fields for the answer.
func DecodeCount(body []byte) (*api.Request, error) {
	return newDecoder().decode(body, func(string) (bool, error) { return false, nil })
}

// requestDecoder decodes one request. In addition to the request it keeps fields whose meaning depends on
// others.
type decoder struct {
	*strictjson.Reader
	req *api.Request

	unknown strictjson.Unknown // top-level keys

	blocks  int // so far
	system  string
	turn    turn // the last one, to which further messages of its role are added
	count   api.MediaCount
	names   map[string]string // tool names by the ids of the calls so far
	think   thinkMode
	effort  string
	formats int // number of fields which request an output format
}

func newDecoder() *decoder {
	return &decoder{req: &api.Request{
		Endpoint:            api.Messages,
		AddGenerationPrompt: true,
		IncludeUsage:        true, // the last event of every stream has it
		N:                   1,
		Logprobs:            -1,
	}}
}

// decodeBody decodes body. own reads the fields which only this endpoint has.
func (d *decoder) decode(body []byte, own func(key string) (known bool, err error)) (*api.Request, error) {
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	d.Reader = r
	err = d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		for _, read := range []func(string) (bool, error){d.common, d.unused, own} {
			if known, err := read(key); known || err != nil {
				return err
			}
		}
		d.unknown.Note(key)
		return d.Skip()
	})
	if err == nil {
		err = d.End()
	}
	if err == nil {
		err = d.check()
	}
	if err != nil {
		return nil, err
	}
	return d.req, nil
}

// readCommonField reads the fields which define the prompt. Both endpoints have them.
func (d *decoder) common(key string) (known bool, err error) {
	switch key {
	case "model":
		return true, d.Text(&d.req.Model)
	case "messages":
		return true, d.Array("an array of messages", d.message)
	case "system":
		return true, d.systemPrompt()
	case "tools":
		return true, d.tools()
	case "tool_choice":
		return true, d.toolChoice()
	case "thinking":
		return true, d.thinking()
	case "output_config":
		return true, d.Object(d.outputConfig)
	case "output_format":
		return true, d.format()
	}
	return false, nil
}

// readCreateField reads the fields which control the answer.
func (d *decoder) create(key string) (known bool, err error) {
	q := d.req
	switch key {
	case "max_tokens":
		return true, d.Integer(&q.MaxTokens, 1, strictjson.MaxCount)
	case "stream":
		return true, d.Flag(&q.Stream)
	case "stop_sequences":
		return true, d.stops()
	case "temperature":
		return true, d.Number(&q.Temperature, 0, 1)
	case "top_p":
		return true, d.Number(&q.TopP, 0, 1)
	case "top_k":
		q.TopK = new(int)
		return true, d.Integer(q.TopK, 0, strictjson.MaxCount)
	case "cache_salt":
		return true, d.salt()
	case "metadata", "diagnostics":
		return true, d.object()
	case "service_tier":
		_, err := d.String()
		return true, err
	case "inference_geo": // global is no restriction
		return true, d.usual("global")
	case "container", "fallback_credit_token", "thread":
		return true, d.notSupported()
	case "fallbacks":
		return true, d.emptyArray()
	}
	return false, nil
}

func (d *decoder) stops() error {
	return d.Array("an array of strings", func(i int) error {
		if i >= maxStops {
			return d.RefuseParent("must have at most %d entries", maxStops)
		}
		s, err := d.String()
		if err == nil && s == "" {
			return d.Refuse("must not be an empty string")
		}
		d.req.Stop = append(d.req.Stop, s)
		return err
	})
}

func (d *decoder) salt() error {
	s, err := d.String()
	if err == nil && (s == "" || len(s) > maxSalt) {
		return d.Refuse("must have between 1 and %d bytes, not %d", maxSalt, len(s))
	}
	d.req.CacheSalt = s
	return err
}

// checkRequest validates the request as a whole, and completes it.
func (d *decoder) check() error {
	q := d.req
	if err := d.unknown.Err(); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(q.Model) == "":
		return fault.Param("model", "'model' is required and must not be blank: name one of GET /v1/models")
	case d.formats > 1:
		return fault.Param("output_format", "'output_format' and 'output_config.format' ask for the same: give one of them")
	}
	if err := d.checkToolChoice(); err != nil {
		return err
	}
	q.TemplateArgs = d.templateArgs()
	return d.conversation()
}
