package batch

import "penstock/internal/engine"

// MaxLogprobs is the largest number of alternatives that a request may ask for.
const MaxLogprobs = engine.MaxLogprobs

// ValidateSampling is [engine.ValidateSampling]. Requests passed to [Computer.StartRequest] satisfy it.
func ValidateSampling(s *engine.Sampling, logprobs, size int) error {
	return engine.ValidateSampling(s, logprobs, size)
}
