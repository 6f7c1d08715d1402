package remote

import (
	"context"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// Prompt has ask fetch the tokens of a prompt from the engine, while that answers, and holds them
// against the card's vocabulary.
func (b *Base) Prompt(ctx context.Context, attempt uint32, ask func(context.Context, *engine.Preprocessed) error) (*engine.Preprocessed, error) {
	inside, done, err := b.Enter(ctx)
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

// ReadTokens reads the "tokens" of an answer to /tokenize into p.
func ReadTokens(body []byte, p *engine.Preprocessed) error {
	c := NewCursor(body)
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == "tokens" {
			p.Tokens = c.Tokens(p.Tokens[:0])
		} else {
			c.Skip()
		}
	}
	if c.End() != nil {
		return &fault.Error{Code: fault.Unavailable, Message: "the engine answers a question for a prompt with what is none", Err: c.Err()}
	}
	return nil
}
