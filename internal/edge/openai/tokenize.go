package openai

import (
	"strconv"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// TokenizeRequest is a decoded request to POST /tokenize.
type TokenizeRequest struct {
	// Chat has the model, and the messages if the request has any; otherwise the request is about Prompt.
	Chat   api.Request
	Prompt string
	// AddSpecial adds the model's special tokens around a text. It applies only to Prompt.
	AddSpecial bool
	// Strings requests the text of each token.
	Strings bool
}

// DecodeTokenize decodes the body of POST /tokenize. The result does not reference body. The error is a
// *fault.Error of code Invalid which names the field.
func DecodeTokenize(body []byte) (*TokenizeRequest, error) {
	q := &TokenizeRequest{Chat: api.Request{Endpoint: api.Chat, AddGenerationPrompt: true}, AddSpecial: true}
	d := &requestDecoder{req: &q.Chat}
	var prompt, special bool
	var chatOnly string // a given field which requires messages
	err := d.readObject(body, func(key string) error {
		switch key {
		case "prompt":
			prompt = true
			return d.ReadStringInto(&q.Prompt)
		case "add_special_tokens":
			special = true
			return d.ReadBoolInto(&q.AddSpecial)
		case "return_token_strs":
			return d.ReadBoolInto(&q.Strings)
		case "model":
			return d.ReadStringInto(&q.Chat.Model)
		case "messages", "add_generation_prompt", "continue_final_message":
			_, err := d.readChatField(key)
			return err
		case "tools", "chat_template_kwargs":
			chatOnly = key
			_, err := d.readChatField(key)
			return err
		case "chat_template", "mm_processor_kwargs":
			return d.refuseUnsupported()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return nil, err
	case prompt == d.messages:
		return nil, fault.InvalidParam("prompt", "give one of 'prompt' and 'messages'")
	case prompt && chatOnly != "":
		return nil, fault.InvalidParam(chatOnly, "'%s' is allowed only with 'messages'", chatOnly)
	case prompt:
		return q, d.checkModel()
	case special && q.AddSpecial:
		return nil, fault.InvalidParam("add_special_tokens", "'add_special_tokens' is not supported with 'messages': the template has them")
	}
	if err := d.checkModel(); err != nil {
		return nil, err
	}
	return q, d.checkChat()
}

// DetokenizeRequest is a decoded request to POST /detokenize.
type DetokenizeRequest struct {
	Model  string
	Tokens []kv.Token
}

// DecodeDetokenize decodes the body of POST /detokenize, as DecodeTokenize does.
func DecodeDetokenize(body []byte) (*DetokenizeRequest, error) {
	d := &requestDecoder{req: &api.Request{}}
	var tokens []kv.Token
	err := d.readObject(body, func(key string) error {
		switch key {
		case "model":
			return d.ReadStringInto(&d.req.Model)
		case "tokens":
			return d.readTokens(&tokens)
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return nil, err
	case tokens == nil:
		return nil, fault.InvalidParam("tokens", "'tokens' is required")
	}
	return &DetokenizeRequest{Model: d.req.Model, Tokens: tokens}, d.checkModel()
}

// readObject reads body, which must be one object. It calls visit for each member which is not null.
func (d *requestDecoder) readObject(body []byte, visit func(key string) error) (err error) {
	if d.Reader, err = strictjson.NewReader(body); err != nil {
		return err
	}
	err = d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		return visit(key)
	})
	if err != nil {
		return err
	}
	return d.CheckEnd()
}

func (d *requestDecoder) checkModel() error {
	if strings.TrimSpace(d.req.Model) == "" {
		return fault.InvalidParam("model", "'model' is required and must not be blank: name one of GET /v1/models")
	}
	return nil
}

// Tokenized is the answer of POST /tokenize.
type Tokenized struct {
	Tokens        []kv.Token
	ContextLength int // of the model, in tokens
	// Text, if not nil, appends the text of a token, which may end within a character.
	Text func(dst []byte, t kv.Token) []byte
}

// AppendTokenized appends the answer as JSON. Invalid UTF-8 of a token becomes U+FFFD.
func AppendTokenized(dst []byte, a *Tokenized) []byte {
	dst = append(dst, `{"count":`...)
	dst = strconv.AppendInt(dst, int64(len(a.Tokens)), 10)
	dst = append(dst, `,"max_model_len":`...)
	dst = strconv.AppendInt(dst, int64(a.ContextLength), 10)
	dst = append(dst, `,"tokens":`...)
	dst = api.AppendTokens(dst, a.Tokens)
	dst = append(dst, `,"token_strs":`...)
	if a.Text == nil {
		return append(dst, "null}"...)
	}
	dst = append(dst, '[')
	var text []byte
	for i, t := range a.Tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		text = a.Text(text[:0], t)
		dst = strictjson.AppendString(dst, text)
	}
	return append(dst, `]}`...)
}

// AppendDetokenized appends the answer of POST /detokenize.
func AppendDetokenized(dst, text []byte) []byte {
	dst = append(dst, `{"prompt":`...)
	dst = strictjson.AppendString(dst, text)
	return append(dst, '}')
}
