package engine

import (
	"context"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Embedder is an engine that turns a text into a vector.
type Embedder interface {
	// Embed returns the embedding of one prompt: the mean of the model's last hidden states over all of its
	// tokens, scaled to length 1. It is a function of the prompt and of the card's Numerics alone, and
	// belongs to the caller. It may be called before Run and waits for it. It returns ctx's error when ctx
	// ends, or a *fault.Error; in each case it releases the request's blocks before it returns.
	Embed(ctx context.Context, req *EmbedRequest) ([]float32, error)
}

// EmbedRequest is one attempt at the embedding of one prompt.
type EmbedRequest struct {
	ID      string // client request id, the same for all attempts
	Attempt uint32 // from 1; identifies late answers of an old attempt, which are dropped
	Model   string
	Prompt  []kv.Token
}

// Validate checks what every engine may rely on. It returns a *fault.Error of
// code Invalid that names the field, or nil.
func (r *EmbedRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case len(r.Prompt) == 0:
		return fault.InvalidParam("input", "the input is empty")
	}
	return nil
}

// Embedding is the answer to an EmbedRequest.
type Embedding struct {
	Attempt uint32
	Vector  []float32
}
