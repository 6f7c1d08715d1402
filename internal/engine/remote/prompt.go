package remote

import (
	"context"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// FetchPrompt calls ask to fetch the tokens of a prompt from the engine, unless it is down, and checks them
// against the card's vocabulary.
func (b *Base) FetchPrompt(ctx context.Context, attempt uint32, ask func(context.Context, *engine.Preprocessed) error) (*engine.Preprocessed, error) {
	inside, done, err := b.StartCall(ctx)
	if err != nil {
		return nil, err
	}
	p := &engine.Preprocessed{Attempt: attempt}
	if err := done(ask(inside, p)); err != nil {
		return nil, err
	}
	if err := p.Validate(b.cfg.Card.VocabSize); err != nil {
		return nil, err
	}
	return p, nil
}

// ParseTokenize reads the "tokens" of a response of /tokenize into p.
func ParseTokenize(body []byte, p *engine.Preprocessed) error {
	c := strictjson.NewCursor(body)
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == "tokens" {
			p.Tokens = c.ReadTokens(p.Tokens[:0])
		} else {
			c.Skip()
		}
	}
	if c.End() != nil {
		return &fault.Error{Code: fault.Unavailable, Message: "the engine answers a question for a prompt with what is none", Err: c.Err()}
	}
	return nil
}
