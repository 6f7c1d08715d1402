package tiny

import (
	"context"
	"math"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// Embed returns the embedding of one prompt as the contract of
// [engine.Embedder] says. Its errors are those of Generate.
func (e *Engine) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	if err := e.checkInput(req.Prompt); err != nil {
		return nil, err
	}
	r := newEmbedding(req, e.hidden)
	if err := e.submit(r); err != nil {
		return nil, err
	}
	// However it ends, nothing is left of the request when Embed returns.
	defer e.abort(r)
	for {
		select {
		case <-r.out.ready:
		case <-ctx.Done():
		}
		_, last, err := r.out.take()
		switch {
		case last && err != nil:
			return nil, err
		case last:
			return unit(r.sum)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

// newEmbedding returns req as the engine keeps it: a generation that ends before
// its first token.
func newEmbedding(req *engine.EmbedRequest, hidden int) *request {
	r := &request{
		req:      &engine.Request{ID: req.ID, Attempt: req.Attempt, Model: req.Model, Prompt: req.Prompt, Choices: 1, Logprobs: -1},
		out:      newOutbox(req.Attempt, []int{0}),
		released: make(chan struct{}),
		sum:      make([]float64, hidden),
	}
	r.open = []*choice{{request: r}}
	return r
}

// reuse says whether the request's sequences share blocks with others.
func (r *request) reuse() paged.Switch {
	if r.sum != nil {
		return paged.Off
	}
	return paged.On
}

// checkInput returns what makes a prompt impossible to embed, or nil. The
// scheduler leaves room for one token of output, also where there is none.
func (e *Engine) checkInput(prompt []kv.Token) error {
	switch n := len(prompt); {
	case n == 0:
		return fault.Param("input", "the input is empty; send at least one token")
	case n >= e.card.ContextLength:
		return fault.Param("input", "the input has %d tokens, and this model takes at most %d; shorten it", n, e.card.ContextLength-1)
	case !e.inVocabulary(prompt):
		return fault.Param("input", "the input has a token outside the vocabulary of %d; was it made with this model's tokenizer?", e.card.VocabSize)
	}
	return nil
}

// unit scales a vector to length 1 and rounds it once. So the sum of hidden
// states serves as well as their mean.
func unit(sum []float64) ([]float32, error) {
	var squares float64
	for _, v := range sum {
		squares += float64(v * v) // rounded by itself, on every architecture
	}
	length := math.Sqrt(squares)
	if !(length > 0) || math.IsInf(length, 0) {
		return nil, fault.New(fault.Internal, "the model's hidden states of this input have no direction; is the checkpoint damaged?")
	}
	vector := make([]float32, len(sum))
	for i, v := range sum {
		vector[i] = float32(v / length)
	}
	return vector, nil
}
