package frontend

import (
	"slices"

	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// requestPeek is the part that is read of a passthrough request: what decides its routing. The rest is
// only checked to be JSON.
type requestPeek struct {
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
func peekRequest(body []byte, fields []string) (*requestPeek, error) {
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	e := &requestPeek{}
	var ext []byte
	err = r.ReadMembers(func(key string) error {
		switch key {
		case "model":
			return r.ReadStringInto(&e.model)
		case "stream":
			return r.ReadBoolInto(&e.stream)
		case "cache_salt":
			return r.ReadStringInto(&e.salt)
		case "nvext":
			ext, err = r.ReadRaw()
			return err
		}
		if !slices.Contains(fields, key) {
			return r.SkipValue()
		}
		raw, err := r.ReadRaw()
		e.keepField(key, raw)
		return err
	})
	if err == nil {
		err = r.CheckEnd()
	}
	if err != nil {
		return nil, err
	}
	if e.prompt != nil {
		e.prompt = append(strictjson.AppendString(append(e.prompt, `,"model":`...), e.model), '}')
	}
	return e, e.decodeExtension(ext)
}

// keepField adds a field to the request that determines the prompt.
func (e *requestPeek) keepField(key string, raw []byte) {
	opening := byte(',')
	if e.prompt == nil {
		opening = '{'
	}
	e.prompt = append(strictjson.AppendString(append(e.prompt, opening), key), ':')
	e.prompt = append(e.prompt, raw...)
}

// decodeExtension reads nvext, as in a completion request.
func (e *requestPeek) decodeExtension(ext []byte) error {
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
