package responses

import (
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// Request is a decoded request, with what its answer repeats of it.
type Request struct {
	*api.Request
	echo echo
}

// Decode reads the body of a request. It keeps nothing of body. The error is a
// *fault.Error of code Invalid that names the field.
func Decode(body []byte) (*Request, error) {
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	q := &api.Request{Endpoint: api.Responses, AddGenerationPrompt: true, N: 1, Logprobs: -1}
	d := &decoder{Reader: r, req: &Request{Request: q}, extras: openai.NewExtras(r, q)}
	if err := r.ReadObject(d.field); err != nil {
		return nil, err
	}
	if err := r.CheckEnd(); err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	return d.req, nil
}

// decoder reads one request. What it keeps beside the request are fields that
// mean something only together with others.
type decoder struct {
	*strictjson.Reader
	req    *Request
	extras *openai.Extras

	input         bool // given
	streamOptions bool // given
	logprobs      bool // include asks for them
	turn          turn // of the assistant, that the input is in
	tools         []tool
	choice        choice
	count         api.MediaCount
	pieces        []api.Part // of the content being read
}

// field reads the value of one top-level key. A null is a field not given.
func (d *decoder) field(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	for _, read := range []func(string) (bool, error){d.talk, d.setting, d.unused, d.extras.ReadField} {
		if known, err := read(key); known || err != nil {
			return err
		}
	}
	return d.UnsupportedError()
}

// talk reads the fields that make the prompt and bound the answer.
func (d *decoder) talk(key string) (known bool, err error) {
	q, e := d.req, &d.req.echo
	switch key {
	case "model":
		return true, d.ReadStringInto(&q.Model)
	case "input":
		d.input = true
		return true, d.items()
	case "instructions":
		return true, d.optional(&e.instructions)
	case "tools":
		return true, d.ReadArray("an array of tools", d.tool)
	case "tool_choice":
		return true, d.toolChoice()
	case "parallel_tool_calls":
		parallel := true
		err := d.ReadBoolInto(&parallel)
		q.OneCall = !parallel
		return true, err
	case "text":
		return true, d.ReadObject(d.text)
	case "reasoning":
		return true, d.ReadObject(d.reasoning)
	case "max_output_tokens":
		return true, d.ReadIntegerInto(&q.MaxTokens, 1, strictjson.MaxCount)
	}
	return false, nil
}

// setting reads the other fields that have an effect.
func (d *decoder) setting(key string) (known bool, err error) {
	q, e := d.req, &d.req.echo
	switch key {
	case "stream":
		return true, d.ReadBoolInto(&q.Stream)
	case "temperature":
		return true, d.ReadNumberInto(&q.Temperature, 0, 2)
	case "top_p":
		return true, d.ReadNumberInto(&q.TopP, 0, 1)
	case "top_logprobs":
		return true, d.ReadIntegerInto(&e.topLogprobs, 0, 20)
	case "include":
		return true, d.ReadArray("an array of strings", d.include)
	case "metadata":
		return true, d.metadata()
	case "max_tool_calls": // of the built-in tools, of which there are none
		return true, d.ReadIntegerInto(&e.maxToolCalls, 1, strictjson.MaxCount)
	case "user":
		return true, d.optional(&e.user)
	case "safety_identifier":
		return true, d.optional(&e.safetyIdentifier)
	case "prompt_cache_key":
		return true, d.optional(&e.promptCacheKey)
	}
	return false, nil
}

// optional reads a string into a new value at dst.
func (d *decoder) optional(dst **string) error {
	s, err := d.ReadString()
	*dst = &s
	return err
}

// include reads the name of something that the answer is to have. All but
// log-probabilities are parts of items that no answer here has, and encrypted
// reasoning, in whose place the answer has the reasoning itself.
func (d *decoder) include(int) error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	switch s {
	case "message.output_text.logprobs":
		d.logprobs = true
		return nil
	case "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
		"message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs":
		return nil
	}
	return d.InvalidError("must be the name of something that an answer can include, such as message.output_text.logprobs")
}

// check judges the request as a whole.
func (d *decoder) check() error {
	q := d.req
	switch {
	case strings.TrimSpace(q.Model) == "":
		return fault.InvalidParam("model", "'model' is required and must not be blank: name one of GET /v1/models")
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
	return d.extras.Check()
}
