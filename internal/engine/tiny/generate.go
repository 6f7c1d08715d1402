package tiny

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/sample"
)

// Generate serves one request as the contract of [engine.Engine] says. Errors of
// its own are Invalid for what can never be served, Overloaded when the queue is
// full, Unavailable when the engine has stopped or stops, Unimplemented for
// adapters, and Internal when the computation failed.
func (e *Engine) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := e.check(req); err != nil {
		return err
	}
	r, err := e.newRequest(req)
	if err != nil {
		return err
	}
	if err := e.submit(r); err != nil {
		return err
	}
	// However it ends, nothing is left of the request when Generate returns.
	defer e.abort(r)
	for {
		select {
		case <-r.out.ready:
		case <-ctx.Done():
		}
		deltas, last, err := r.out.take()
		for i := range deltas {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := sink(&deltas[i]); err != nil {
				return err
			}
		}
		switch {
		case last:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// submit puts r into the inbox. What has nothing left to generate ends at once.
func (e *Engine) submit(r *request) error {
	if len(r.open) == 0 {
		r.out.accept()
		r.out.close(nil)
		close(r.released)
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.phase == stopped {
		return errStopped()
	}
	if room := e.cfg.MaxSeqs + e.cfg.MaxWaiting - e.mu.sequences; len(r.open) > room {
		return fault.New(fault.Overloaded, "the engine's queue is full: %d sequences are running or waiting; try again later", e.mu.sequences)
	}
	e.mu.sequences += len(r.open)
	e.mu.inbox = append(e.mu.inbox, r)
	e.poke()
	return nil
}

// abort makes the engine let go of r and waits until it has. If r has ended,
// there is nothing to do.
func (e *Engine) abort(r *request) {
	e.mu.Lock()
	select {
	case <-r.released:
		e.mu.Unlock()
		return
	default:
	}
	if i := slices.Index(e.mu.inbox, r); i >= 0 {
		e.mu.inbox = slices.Delete(e.mu.inbox, i, i+1)
		e.mu.sequences -= len(r.open)
		close(r.released)
		e.mu.Unlock()
		return
	}
	e.mu.aborts = append(e.mu.aborts, r)
	e.mu.Unlock()
	e.poke()
	<-r.released
}

func errStopped() error {
	return fault.New(fault.Unavailable, "the engine has stopped; another worker may serve the request")
}

// check returns what makes req impossible to serve, or nil.
func (e *Engine) check(req *engine.Request) error {
	switch {
	case req.Choices < 1 || req.Choices > e.cfg.MaxSeqs+e.cfg.MaxWaiting:
		return fault.Param("n", "n is %d; it must be between 1 and %d", req.Choices, e.cfg.MaxSeqs+e.cfg.MaxWaiting)
	case req.Generated != nil && len(req.Generated) != req.Choices:
		return fault.New(fault.Invalid, "resumed with the output of %d choices of %d; send one list for each", len(req.Generated), req.Choices)
	case req.Done != nil && len(req.Done) != req.Choices:
		return fault.New(fault.Invalid, "resumed with the ends of %d choices of %d; send one for each", len(req.Done), req.Choices)
	case req.Stop.MaxTokens < 1:
		return fault.Param("max_tokens", "max_tokens is %d; it must be at least 1", req.Stop.MaxTokens)
	case req.Stop.MinTokens < 0 || req.Stop.MinTokens > req.Stop.MaxTokens:
		return fault.Param("min_tokens", "min_tokens is %d; it must be between 0 and max_tokens, %d", req.Stop.MinTokens, req.Stop.MaxTokens)
	case req.Salt.LoRA != "":
		return fault.New(fault.Unimplemented, "this engine serves no adapters; ask for the base model")
	case req.Guide != nil && !e.card.Guided:
		return engine.RefuseGuide()
	}
	if err := sample.Validate(&req.Sampling, req.Logprobs, e.card.VocabSize); err != nil {
		return err
	}
	return e.checkTokens(req)
}

func (e *Engine) checkTokens(req *engine.Request) error {
	switch n := len(req.Prompt); {
	case n == 0:
		return fault.New(fault.Invalid, "the prompt is empty; send at least one token")
	case n >= e.card.ContextLength:
		return fault.New(fault.Invalid, "the prompt has %d tokens, and the context of this model is %d, output included; shorten the prompt", n, e.card.ContextLength)
	}
	if !e.inVocabulary(req.Prompt) {
		return fault.New(fault.Invalid, "the prompt has a token outside the vocabulary of %d; was it made with this model's tokenizer?", e.card.VocabSize)
	}
	for i, generated := range req.Generated {
		if n := len(req.Prompt) + len(generated); n > e.card.ContextLength {
			return fault.New(fault.Invalid, "prompt and earlier output of choice %d have %d tokens, and the context of this model is %d; resume on an engine of the same context", i, n, e.card.ContextLength)
		}
		if !e.inVocabulary(generated) {
			return fault.New(fault.Invalid, "the earlier output of choice %d has a token outside the vocabulary of %d; resume on an engine of the same model", i, e.card.VocabSize)
		}
	}
	for _, m := range req.Media {
		if m.Start < 0 || m.Start > m.End || m.End > len(req.Prompt) {
			return fault.New(fault.Invalid, "a media object has the positions %d to %d in a prompt of %d tokens", m.Start, m.End, len(req.Prompt))
		}
	}
	return nil
}

func (e *Engine) inVocabulary(tokens []kv.Token) bool {
	return !slices.ContainsFunc(tokens, func(t kv.Token) bool { return int(t) >= e.card.VocabSize })
}
