package openai

import (
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
	d := &tokenizeDecoder{TokenizeRequest: q, requestDecoder: requestDecoder{BodyDecoder: api.BodyDecoder{Req: &q.Chat}}}
	err := d.ReadBody(body, func() error { return tokenizeTable.ReadObject(d) })
	switch {
	case err != nil:
		return nil, err
	case d.prompt == d.messages:
		return nil, fault.InvalidParam("prompt", "give one of 'prompt' and 'messages'")
	case d.prompt && d.chatOnly != "":
		return nil, fault.InvalidParam(d.chatOnly, "'%s' is allowed only with 'messages'", d.chatOnly)
	case d.prompt:
		return q, d.CheckModel()
	case d.special && q.AddSpecial:
		return nil, fault.InvalidParam("add_special_tokens", "'add_special_tokens' is not supported with 'messages': the template has them")
	}
	if err := d.CheckModel(); err != nil {
		return nil, err
	}
	return q, d.checkChat()
}

// tokenizeDecoder decodes one request to POST /tokenize.
type tokenizeDecoder struct {
	requestDecoder
	*TokenizeRequest
	special  bool   // add_special_tokens is given
	chatOnly string // a given field which requires messages
}

var tokenizeTable = api.NewTable([]api.FieldRow[*tokenizeDecoder]{
	{Name: "model", Required: true, Value: api.Model},
	{Name: "prompt", Schema: api.StringSchema, Read: func(d *tokenizeDecoder) error {
		d.prompt = true
		return d.ReadStringInto(&d.Prompt)
	}},
	{Name: "messages", Schema: messagesSchema, Read: (*tokenizeDecoder).readMessages},
	{Name: "add_special_tokens", Schema: api.BoolSchema, Read: func(d *tokenizeDecoder) error {
		d.special = true
		return d.ReadBoolInto(&d.AddSpecial)
	}},
	{Name: "add_generation_prompt", Schema: api.BoolSchema, Read: (*tokenizeDecoder).readAddGeneration},
	{Name: "continue_final_message", Value: api.Bool(func(q *api.Request) *bool { return &q.ContinueFinal })},
	{Name: "return_token_strs", Schema: api.BoolSchema, Read: func(d *tokenizeDecoder) error { return d.ReadBoolInto(&d.Strings) }},
	{Name: "tools", Schema: toolsSchema, Read: func(d *tokenizeDecoder) error {
		d.chatOnly = "tools"
		return d.readTools()
	}},
	{Name: "chat_template_kwargs", Schema: api.ObjectSchema, Read: func(d *tokenizeDecoder) error {
		d.chatOnly = "chat_template_kwargs"
		return d.readTemplateArgs()
	}},
	{Name: "chat_template", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "mm_processor_kwargs", Treatment: api.Refused, Value: api.OnlyNull},
})

// TokenizeFields lists the fields of POST /tokenize.
func TokenizeFields() []api.Field { return tokenizeTable.Fields() }

// DetokenizeRequest is a decoded request to POST /detokenize.
type DetokenizeRequest struct {
	Model  string
	Tokens []kv.Token
}

// DecodeDetokenize decodes the body of POST /detokenize, as DecodeTokenize does.
func DecodeDetokenize(body []byte) (*DetokenizeRequest, error) {
	d := &detokenizeDecoder{requestDecoder: requestDecoder{BodyDecoder: api.BodyDecoder{Req: &api.Request{}}}}
	err := d.ReadBody(body, func() error { return detokenizeTable.ReadObject(d) })
	switch {
	case err != nil:
		return nil, err
	case d.tokens == nil:
		return nil, fault.InvalidParam("tokens", "'tokens' is required")
	}
	return &DetokenizeRequest{Model: d.Req.Model, Tokens: d.tokens}, d.CheckModel()
}

// detokenizeDecoder decodes one request to POST /detokenize.
type detokenizeDecoder struct {
	requestDecoder
	tokens []kv.Token
}

var detokenizeTable = api.NewTable([]api.FieldRow[*detokenizeDecoder]{
	{Name: "model", Required: true, Value: api.Model},
	{Name: "tokens", Required: true, Schema: tokenIDs, Read: func(d *detokenizeDecoder) error { return d.readTokens(&d.tokens) }},
})

// DetokenizeFields lists the fields of POST /detokenize.
func DetokenizeFields() []api.Field { return detokenizeTable.Fields() }

// Tokenized is the answer of POST /tokenize.
type Tokenized struct {
	Tokens        []kv.Token
	ContextLength int // of the model, in tokens
	// Text, if not nil, appends the text of a token, which may end within a character.
	Text func(dst []byte, t kv.Token) []byte
}

// AppendTokenized appends the answer as JSON. Invalid UTF-8 of a token becomes U+FFFD.
func AppendTokenized(dst []byte, a *Tokenized) []byte {
	dst = strictjson.AppendInt(dst, `{"count":`, len(a.Tokens))
	dst = strictjson.AppendInt(dst, `,"max_model_len":`, a.ContextLength)
	dst = append(dst, `,"tokens":`...)
	dst = strictjson.AppendTokens(dst, a.Tokens)
	dst = append(dst, `,"token_strs":`...)
	if a.Text == nil {
		return append(dst, "null}"...)
	}
	dst = append(dst, '[')
	var text []byte
	for i, t := range a.Tokens {
		dst = strictjson.AppendComma(dst, i)
		text = a.Text(text[:0], t)
		dst = strictjson.AppendString(dst, text)
	}
	return append(dst, `]}`...)
}

// AppendDetokenized appends the answer of POST /detokenize.
func AppendDetokenized(dst, text []byte) []byte {
	dst = strictjson.AppendMember(dst, `{"prompt":`, text)
	return append(dst, '}')
}
