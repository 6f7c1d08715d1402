package frontend

import (
	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// EncodeText returns the tokens of a raw prompt for a model, by the name that a
// client would use. The error is a *fault.Error: NotFound for an unknown model,
// Unavailable for one that cannot be served now.
func (f *Frontend) EncodeText(model, text string) ([]kv.Token, error) {
	m, err := f.catalog.find(model)
	if err != nil {
		return nil, err
	}
	return m.pipe.EncodeText(nil, text), nil
}

// EncodeChat returns the tokens of a conversation for a model. Its errors are
// those of EncodeText, and Invalid or Unimplemented if the model's template
// refuses the conversation.
func (f *Frontend) EncodeChat(model string, c *prep.Chat) ([]kv.Token, error) {
	m, err := f.catalog.find(model)
	if err != nil {
		return nil, err
	}
	return m.pipe.EncodeChat(nil, c)
}
