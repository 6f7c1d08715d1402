package batch

import (
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// check returns what makes req impossible to serve, whatever computes it, or nil.
func (e *Engine) check(req *engine.Request) error {
	switch most := e.cfg.MaxSeqs + e.cfg.MaxWaiting; {
	case req.Choices < 1 || req.Choices > most:
		return fault.Param("n", "n is %d; it must be between 1 and %d", req.Choices, most)
	case req.Generated != nil && len(req.Generated) != req.Choices:
		return fault.New(fault.Invalid, "resumed with the output of %d choices of %d; send one list for each", len(req.Generated), req.Choices)
	case req.Done != nil && len(req.Done) != req.Choices:
		return fault.New(fault.Invalid, "resumed with the ends of %d choices of %d; send one for each", len(req.Done), req.Choices)
	case req.Stop.MaxTokens < 1:
		return fault.Param("max_tokens", "max_tokens is %d; it must be at least 1", req.Stop.MaxTokens)
	case req.Stop.MinTokens < 0 || req.Stop.MinTokens > req.Stop.MaxTokens:
		return fault.Param("min_tokens", "min_tokens is %d; it must be between 0 and max_tokens, %d", req.Stop.MinTokens, req.Stop.MaxTokens)
	case req.Guide != nil && !e.cfg.Card.Guided:
		return engine.RefuseGuide()
	}
	if err := ValidateSampling(&req.Sampling, req.Logprobs, e.cfg.Card.VocabSize); err != nil {
		return err
	}
	return e.checkTokens(req)
}

func (e *Engine) checkTokens(req *engine.Request) error {
	card := &e.cfg.Card
	switch n := len(req.Prompt); {
	case n == 0:
		return fault.New(fault.Invalid, "the prompt is empty; send at least one token")
	case n >= card.ContextLength:
		return fault.New(fault.Invalid, "the prompt has %d tokens, and the context of this model is %d, output included; shorten the prompt", n, card.ContextLength)
	}
	if !e.inVocabulary(req.Prompt) {
		return fault.New(fault.Invalid, "the prompt has a token outside the vocabulary of %d; was it made with this model's tokenizer?", card.VocabSize)
	}
	for i, generated := range req.Generated {
		if n := len(req.Prompt) + len(generated); n > card.ContextLength {
			return fault.New(fault.Invalid, "prompt and earlier output of choice %d have %d tokens, and the context of this model is %d; resume on an engine of the same context", i, n, card.ContextLength)
		}
		if !e.inVocabulary(generated) {
			return fault.New(fault.Invalid, "the earlier output of choice %d has a token outside the vocabulary of %d; resume on an engine of the same model", i, card.VocabSize)
		}
	}
	for _, m := range req.Media {
		if m.Start < 0 || m.Start > m.End || m.End > len(req.Prompt) {
			return fault.New(fault.Invalid, "a media object has the positions %d to %d in a prompt of %d tokens", m.Start, m.End, len(req.Prompt))
		}
	}
	return nil
}

// checkInput returns what makes a prompt impossible to prefill, or nil. The
// scheduler leaves room for one token of output, also where there is none.
func (e *Engine) checkInput(prompt []kv.Token) error {
	card := &e.cfg.Card
	switch n := len(prompt); {
	case n == 0:
		return fault.Param("input", "the input is empty; send at least one token")
	case n >= card.ContextLength:
		return fault.Param("input", "the input has %d tokens, and this model takes at most %d; shorten it", n, card.ContextLength-1)
	case !e.inVocabulary(prompt):
		return fault.Param("input", "the input has a token outside the vocabulary of %d; was it made with this model's tokenizer?", card.VocabSize)
	}
	return nil
}

func (e *Engine) inVocabulary(tokens []kv.Token) bool {
	return !slices.ContainsFunc(tokens, func(t kv.Token) bool { return int(t) >= e.cfg.Card.VocabSize })
}
