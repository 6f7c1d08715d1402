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

	// maxMessages bounds what a body of tiny messages becomes, and maxBlocks what one
	// of tiny blocks does: each is a struct of up to a hundred bytes.
	maxMessages = 1 << 16
	maxBlocks   = 1 << 16 // of all messages
)

// Decode reads the body of POST /v1/messages. It keeps nothing of body. The error
// is a *fault.Error of code Invalid that names the field.
func Decode(body []byte) (*api.Request, error) {
	d := newDecoder()
	q, err := d.decode(body, d.create)
	if err == nil && q.MaxTokens == 0 {
		return nil, fault.Param("max_tokens", "'max_tokens' is required: say how long the answer may be")
	}
	return q, err
}

// DecodeCount reads the body of POST /v1/messages/count_tokens, which is that of
// /v1/messages without what only an answer needs.
func DecodeCount(body []byte) (*api.Request, error) {
	return newDecoder().decode(body, func(string) (bool, error) { return false, nil })
}

// decoder reads one request. What it keeps beside the request are fields that
// mean something only together with others.
type decoder struct {
	*strictjson.Reader
	req *api.Request

	unknown strictjson.Unknown // top-level keys

	blocks  int // so far
	system  string
	turn    turn // the last so far, to which further messages of its role belong
	count   api.MediaCount
	names   map[string]string // of the tools called so far, by the call's id
	think   thinkMode
	effort  string
	formats int // fields that ask for one
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

// decode reads body; own reads the fields that only this endpoint has.
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

// common reads the fields that say what the prompt is, which both endpoints have.
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

// create reads the fields that say how to answer.
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
	case "inference_geo": // one that leaves the place open asks for nothing
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

// check judges the request as a whole, and completes it.
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
