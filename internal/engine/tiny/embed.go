package tiny

import (
	"context"
	"math"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// Embed returns the embedding of one prompt; see [engine.Embedder]. Its errors are Generate's.
func (e *Engine) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	c := &choiceState{sum: make([]float64, e.hidden)}
	if err := e.Prefill(ctx, req, c); err != nil {
		return nil, err
	}
	return normalizeVector(c.sum)
}

// normalizeVector scales a vector to length 1 and rounds it once. The sum of hidden states therefore serves
// as well as their mean.
func normalizeVector(sum []float64) ([]float32, error) {
	var squares float64
	for _, v := range sum {
		squares += float64(v * v) // rounded separately, on every architecture
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
