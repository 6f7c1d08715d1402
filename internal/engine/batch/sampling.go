package batch

import "penstock/internal/engine"

// MaxLogprobs is the most alternatives that a request may ask for.
const MaxLogprobs = engine.MaxLogprobs

// ValidateSampling is [engine.ValidateSampling]. Requests have passed it when [Computer.Begin]
// sees them.
func ValidateSampling(s *engine.Sampling, logprobs, size int) error {
	return engine.ValidateSampling(s, logprobs, size)
}
