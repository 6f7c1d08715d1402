package enginetest

import (
	"context"
	"fmt"
	"slices"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// Choice is the output of one choice of a request in one attempt.
type Choice struct {
	Tokens   []kv.Token // of this attempt; Generated is not repeated
	Logprobs []engine.Logprob
	Cached   int // as reported with the first tokens or, by an engine that knows it late, with the last
	Finish   engine.Finish
}

// Generate serves req on e and returns the output of each choice. It fails if the stream of deltas breaks the
// contract: see [Recorder].
func Generate(ctx context.Context, e engine.Engine, req *engine.Request) ([]Choice, error) {
	r := NewRecorder(req)
	if err := e.Generate(ctx, req, r.Sink); err != nil {
		return r.Choices, err
	}
	return r.Choices, r.Complete()
}

// Recorder is a sink that copies an attempt's deltas and checks their order: Accepted once and first; the
// request's attempt number on all of them; for each choice positions without gap from the end of Generated,
// log-probabilities for every token if requested, Cached with the first tokens only, or unknown there and
// with the last delta, and nothing after Finish.
type Recorder struct {
	Choices  []Choice
	Accepted bool
	req      *engine.Request
}

// NewRecorder returns a Recorder for one attempt at req.
func NewRecorder(req *engine.Request) *Recorder {
	return &Recorder{Choices: make([]Choice, max(req.Choices, 0)), req: req}
}

// Sink takes one delta; its error names the broken rule.
func (r *Recorder) Sink(d *engine.Delta) error {
	if d.Attempt != r.req.Attempt {
		return fmt.Errorf("delta of attempt %d in attempt %d", d.Attempt, r.req.Attempt)
	}
	if d.Accepted || !r.Accepted {
		return r.checkAccepted(d)
	}
	if d.Choice < 0 || d.Choice >= len(r.Choices) {
		return fmt.Errorf("delta for choice %d of %d", d.Choice, len(r.Choices))
	}
	c := &r.Choices[d.Choice]
	switch {
	case r.req.Done != nil && r.req.Done[d.Choice]:
		return fmt.Errorf("choice %d: delta although it is done", d.Choice)
	case c.Finish != engine.NotFinished:
		return fmt.Errorf("choice %d: delta after its last", d.Choice)
	case len(d.Tokens) == 0 && d.Finish == engine.NotFinished:
		return fmt.Errorf("choice %d: empty delta", d.Choice)
	case d.Pos != r.deliveredLen(d.Choice)+len(c.Tokens):
		return fmt.Errorf("choice %d: position %d after %d+%d tokens", d.Choice, d.Pos, r.deliveredLen(d.Choice), len(c.Tokens))
	case d.Cached != 0 && len(c.Tokens) > 0 && (c.Cached != engine.CachedUnknown || d.Finish == engine.NotFinished):
		return fmt.Errorf("choice %d: cached count after the first tokens", d.Choice)
	case d.Cached < engine.CachedUnknown || d.Cached > len(r.req.Prompt):
		return fmt.Errorf("choice %d: %d tokens cached of a prompt of %d", d.Choice, d.Cached, len(r.req.Prompt))
	}
	if err := r.checkLogprobs(d); err != nil {
		return err
	}
	if len(c.Tokens) == 0 || c.Cached == engine.CachedUnknown && d.Finish != engine.NotFinished {
		c.Cached = d.Cached
	}
	c.Tokens = append(c.Tokens, d.Tokens...)
	for _, l := range d.Logprobs {
		l.Top = slices.Clone(l.Top)
		c.Logprobs = append(c.Logprobs, l)
	}
	c.Finish = d.Finish
	return nil
}

func (r *Recorder) checkAccepted(d *engine.Delta) error {
	if r.Accepted || !d.Accepted {
		return fmt.Errorf("accepted twice or not first: %v after %v", d.Accepted, r.Accepted)
	}
	if d.Choice != 0 || d.Pos != 0 || d.Cached != 0 || len(d.Tokens) != 0 || len(d.Logprobs) != 0 || d.Finish != engine.NotFinished {
		return fmt.Errorf("the accepting delta carries more than the attempt")
	}
	r.Accepted = true
	return nil
}

func (r *Recorder) checkLogprobs(d *engine.Delta) error {
	if r.req.Logprobs < 0 {
		if len(d.Logprobs) != 0 {
			return fmt.Errorf("choice %d: log-probabilities which were not asked for", d.Choice)
		}
		return nil
	}
	if len(d.Logprobs) != len(d.Tokens) {
		return fmt.Errorf("choice %d: %d log-probabilities for %d tokens", d.Choice, len(d.Logprobs), len(d.Tokens))
	}
	for i, l := range d.Logprobs {
		if l.Token != d.Tokens[i] || l.Logprob > 0 || len(l.Top) > r.req.Logprobs {
			return fmt.Errorf("choice %d: log-probability %d does not describe its token", d.Choice, i)
		}
	}
	return nil
}

// Complete returns an error unless every choice that was not done is finished.
func (r *Recorder) Complete() error {
	if !r.Accepted {
		return fmt.Errorf("ended without being accepted")
	}
	for i, c := range r.Choices {
		done := r.req.Done != nil && r.req.Done[i]
		if !done && c.Finish == engine.NotFinished {
			return fmt.Errorf("ended with choice %d unfinished", i)
		}
	}
	return nil
}

func (r *Recorder) deliveredLen(choice int) int {
	if r.req.Generated == nil {
		return 0
	}
	return len(r.req.Generated[choice])
}
