package batch

import (
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// checkRequest returns why req can never be served, whatever the Computer, or nil.
func (e *Engine) checkRequest(req *engine.Request) error {
	switch most := e.cfg.MaxSeqs + e.cfg.MaxWaiting; {
	case req.Choices < 1 || req.Choices > most:
		return fault.InvalidParam("n", "n is %d; it must be between 1 and %d", req.Choices, most)
	}
	return e.cfg.Card.CheckRequest(req)
}

// checkInput returns why a prompt cannot be prefilled, or nil. The scheduler reserves one token of output,
// even if there is none.
func (e *Engine) checkInput(prompt []kv.Token) error {
	card := &e.cfg.Card
	switch n := len(prompt); {
	case n == 0:
		return fault.InvalidParam("input", "the input is empty; send at least one token")
	case n >= card.ContextLength:
		return fault.InvalidParam("input", "the input has %d tokens, and this model takes at most %d; shorten it", n, card.ContextLength-1)
	case !e.allInVocabulary(prompt):
		return fault.InvalidParam("input", "the input has a token outside the vocabulary of %d; was it made with this model's tokenizer?", card.VocabSize)
	}
	return nil
}

func (e *Engine) allInVocabulary(tokens []kv.Token) bool {
	return !slices.ContainsFunc(tokens, func(t kv.Token) bool { return int(t) >= e.cfg.Card.VocabSize })
}
