package frontend

import (
	"slices"

	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// requestPeek is the part that is read of a passthrough request: what decides its routing. The rest is
// only checked to be JSON.
type envelope struct {
	model  string
	stream bool
	salt   string
	ext    api.RequestExt
	// greedy and extSalt are greed_sampling and cache_salt of nvext.
	greedy  bool
	extSalt string
	// prompt is a request to the same endpoint with only the fields that determine its prompt, so that
	// fields which only the engine knows do not prevent tokenizing it; nil if the whole request is
	// needed.
	prompt []byte
}

// promptFields are the fields of a request that determine its prompt.
func promptFields(e api.Endpoint) []string {
	switch e {
	case api.Chat:
		return []string{"messages", "tools", "tool_choice", "functions", "function_call", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"}
	case api.Completion:
		return []string{"prompt"}
	}
	return nil
}

// peekRequest reads the top level of a request, and fields, which determine its prompt.
func openEnvelope(body []byte, fields []string) (*envelope, error) {
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	e := &envelope{}
	var ext []byte
	err = r.Object(func(key string) error {
		if none, err := r.Null(); none || err != nil {
			return err
		}
		switch key {
		case "model":
			return r.Text(&e.model)
		case "stream":
			return r.Flag(&e.stream)
		case "cache_salt":
			return r.Text(&e.salt)
		case "nvext":
			ext, err = r.Raw()
			return err
		}
		if !slices.Contains(fields, key) {
			return r.Skip()
		}
		raw, err := r.Raw()
		e.keep(key, raw)
		return err
	})
	if err == nil {
		err = r.End()
	}
	if err != nil {
		return nil, err
	}
	if e.prompt != nil {
		e.prompt = append(strictjson.AppendString(append(e.prompt, `,"model":`...), e.model), '}')
	}
	return e, e.extend(ext)
}

// keepField adds a field to the request that determines the prompt.
func (e *envelope) keep(key string, raw []byte) {
	opening := byte(',')
	if e.prompt == nil {
		opening = '{'
	}
	e.prompt = append(strictjson.AppendString(append(e.prompt, opening), key), ':')
	e.prompt = append(e.prompt, raw...)
}

// decodeExtension reads nvext, as in a completion request.
func (e *envelope) extend(ext []byte) error {
	if ext == nil {
		return nil
	}
	b := append([]byte(`{"model":"m","prompt":[0],"nvext":`), ext...)
	q, err := openai.Decode(api.Completion, append(b, '}'))
	if err == nil {
		e.ext, e.greedy, e.extSalt = q.Ext, q.Temperature != nil, q.CacheSalt
	}
	return err
}
