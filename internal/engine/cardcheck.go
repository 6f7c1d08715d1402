package engine

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// CheckRequest returns why no engine can serve req for a model of this card, or nil: an Invalid error that
// names the field and the remedy, or Unimplemented for an OutputSchema or for Features that the engine does
// not support.
func (c *Card) CheckRequest(req *Request) error {
	switch {
	case req.Choices < 1:
		return fault.InvalidParam("n", "n is %d; it must be at least 1", req.Choices)
	case req.Generated != nil && len(req.Generated) != req.Choices:
		return fault.New(fault.Invalid, "resumed with the output of %d choices of %d; send one list for each", len(req.Generated), req.Choices)
	case req.Done != nil && len(req.Done) != req.Choices:
		return fault.New(fault.Invalid, "resumed with the ends of %d choices of %d; send one for each", len(req.Done), req.Choices)
	case req.Stop.MaxTokens < 1:
		return fault.InvalidParam("max_tokens", "max_tokens is %d; it must be at least 1", req.Stop.MaxTokens)
	case req.Stop.MinTokens < 0 || req.Stop.MinTokens > req.Stop.MaxTokens:
		return fault.InvalidParam("min_tokens", "min_tokens is %d; it must be between 0 and max_tokens, %d", req.Stop.MinTokens, req.Stop.MaxTokens)
	case req.OutputSchema != nil && !c.StructuredOutput:
		return RefuseSchema()
	}
	if len(req.Features) > 0 && !c.Features {
		return RefuseFeatures(nil)
	}
	if err := ValidateSampling(&req.Sampling, req.Logprobs, c.VocabSize); err != nil {
		return err
	}
	return c.checkTokens(req)
}

func (c *Card) checkTokens(req *Request) error {
	switch n := len(req.Prompt); {
	case n == 0:
		return fault.New(fault.Invalid, "the prompt is empty; send at least one token")
	case n >= c.ContextLength:
		return fault.New(fault.Invalid, "the prompt has %d tokens, and the context of this model is %d, output included; shorten the prompt", n, c.ContextLength)
	}
	if !c.allInVocabulary(req.Prompt) {
		return fault.New(fault.Invalid, "the prompt has a token outside the vocabulary of %d; was it made with this model's tokenizer?", c.VocabSize)
	}
	for i, generated := range req.Generated {
		if n := len(req.Prompt) + len(generated); n > c.ContextLength {
			return fault.New(fault.Invalid, "prompt and earlier output of choice %d have %d tokens, and the context of this model is %d; resume on an engine of the same context", i, n, c.ContextLength)
		}
		if !c.allInVocabulary(generated) {
			return fault.New(fault.Invalid, "the earlier output of choice %d has a token outside the vocabulary of %d; resume on an engine of the same model", i, c.VocabSize)
		}
	}
	for _, m := range req.Media {
		if m.Start < 0 || m.Start > m.End || m.End > len(req.Prompt) {
			return fault.New(fault.Invalid, "a media object has the positions %d to %d in a prompt of %d tokens", m.Start, m.End, len(req.Prompt))
		}
	}
	return nil
}

func (c *Card) allInVocabulary(tokens []kv.Token) bool {
	return !slices.ContainsFunc(tokens, func(t kv.Token) bool { return int64(t) >= int64(c.VocabSize) })
}

// MediaCheckSource is an engine whose token counts of media were compared with Penstock's.
type MediaCheckSource interface {
	// MediaChecks returns the results of the last comparison, in the order of the samples; nil before the
	// first. The slice belongs to the caller.
	MediaChecks() []MediaCheck
}

// StartChecker is an engine that asks its server in the background, at each start, whether it keeps cache salts
// apart and how many tokens media have.
type StartChecker interface {
	// AwaitStartChecks returns when all that is asked has had a first result, which Warnings and MediaChecks
	// report, or when ctx ends. The engine must be running.
	AwaitStartChecks(ctx context.Context)
}

// MediaCheck is the comparison of one sample. It is JSON in the engine's state.
type MediaCheck struct {
	// Sample describes the sample ("a JPEG sequence of 40 frames"), Kind is its kind of media.
	Sample string `json:"sample"`
	Kind   string `json:"kind"`
	// Counted is Penstock's token count, Reported the engine's.
	Counted  int `json:"counted,omitempty"`
	Reported int `json:"reported,omitempty"`
	// Unchecked says why there was no comparison; "" if there was one.
	Unchecked string `json:"unchecked,omitempty"`
}

// Differs reports whether the engine's token count differs from Penstock's.
func (c *MediaCheck) Differs() bool { return c.Unchecked == "" && c.Counted != c.Reported }
