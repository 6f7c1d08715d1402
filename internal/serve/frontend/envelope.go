package frontend

import (
	"slices"

	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// envelope is what is read of a request that an engine takes as it is: what decides where
// it goes. The rest is only checked to be JSON.
type envelope struct {
	model  string
	stream bool
	salt   string
	ext    api.RequestExt
	// greedy and extSalt are greed_sampling and cache_salt of nvext.
	greedy  bool
	extSalt string
	// prompt is a request to the same endpoint with the fields alone that its prompt is made
	// of, so that fields which only the engine knows are no reason not to know the prompt; nil if
	// the whole request is needed.
	prompt []byte
}

// promptFields are the fields of a request that its prompt is made of.
func promptFields(e api.Endpoint) []string {
	switch e {
	case api.Chat:
		return []string{"messages", "tools", "tool_choice", "functions", "function_call", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"}
	case api.Completion:
		return []string{"prompt"}
	}
	return nil
}

// openEnvelope reads the top level of a request, with the fields that its prompt is made of.
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

// keep adds a field to the request that the prompt is made of.
func (e *envelope) keep(key string, raw []byte) {
	opening := byte(',')
	if e.prompt == nil {
		opening = '{'
	}
	e.prompt = append(strictjson.AppendString(append(e.prompt, opening), key), ':')
	e.prompt = append(e.prompt, raw...)
}

// extend reads what nvext says, as in a request to completions.
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
