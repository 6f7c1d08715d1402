package engine

import (
	"math"

	"penstock/core/fault"
)

// MaxLogprobs is the largest number of alternatives that a request may ask for.
const MaxLogprobs = 20

// ValidateSampling returns an Invalid error that names the first parameter of s that cannot be served over a
// vocabulary of size tokens, or nil. Card.CheckRequest includes it.
func ValidateSampling(s *Sampling, logprobs, size int) error {
	ranges := []struct {
		name       string
		value      float64
		low, high  float64
		constraint string
	}{
		{"temperature", s.Temperature, 0, math.MaxFloat32, "a number of at least 0"},
		{"top_k", float64(s.TopK), 0, math.MaxInt32, "at least 0 (0 is off)"},
		{"top_p", s.TopP, 0, 1, "between 0 and 1"},
		{"min_p", s.MinP, 0, 1, "between 0 and 1"},
		{"repetition_penalty", s.RepetitionPenalty, 0, 1e6, "between 0 and 1e6 (0 and 1 are off)"},
		{"presence_penalty", s.PresencePenalty, -1e6, 1e6, "between -1e6 and 1e6"},
		{"frequency_penalty", s.FrequencyPenalty, -1e6, 1e6, "between -1e6 and 1e6"},
		{"logprobs", float64(logprobs), -1, MaxLogprobs, "at most 20"},
	}
	for _, r := range ranges {
		if !(r.value >= r.low && r.value <= r.high) { // written so that NaN fails
			return fault.InvalidParam(r.name, "%s is %v; it must be %s", r.name, r.value, r.constraint)
		}
	}
	if s.RepetitionPenalty != 0 && s.RepetitionPenalty < 1e-6 {
		return fault.InvalidParam("repetition_penalty", "repetition_penalty is %v; it must be at least 1e-6, or 0 for none", s.RepetitionPenalty)
	}
	for _, b := range s.Bias {
		if int(b.Token) >= size {
			return fault.InvalidParam("logit_bias", "logit_bias names a token outside the vocabulary of %d; use smaller ids", size)
		}
		if !(b.Bias >= -1e6 && b.Bias <= 1e6) {
			return fault.InvalidParam("logit_bias", "logit_bias has the value %v; it must be between -1e6 and 1e6", b.Bias)
		}
	}
	return nil
}
