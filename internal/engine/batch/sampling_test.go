package batch

import (
	"errors"
	"math"
	"testing"

	"penstock/core/fault"
	"penstock/internal/engine"
)

func TestValidateSampling(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		sampling engine.Sampling
		logprobs int
		param    string // "" is valid
	}{
		{engine.Sampling{}, -1, ""},
		{engine.Sampling{Temperature: 2, TopK: 5, TopP: 1, MinP: 1, RepetitionPenalty: 1.1, PresencePenalty: -2, FrequencyPenalty: 2}, 20, ""},
		{engine.Sampling{Temperature: -0.1}, -1, "temperature"},
		{engine.Sampling{Temperature: nan}, -1, "temperature"},
		{engine.Sampling{Temperature: math.Inf(1)}, -1, "temperature"},
		{engine.Sampling{TopK: -1}, -1, "top_k"},
		{engine.Sampling{TopP: 1.01}, -1, "top_p"},
		{engine.Sampling{MinP: -1}, -1, "min_p"},
		{engine.Sampling{RepetitionPenalty: -1}, -1, "repetition_penalty"},
		{engine.Sampling{RepetitionPenalty: 1e-9}, -1, "repetition_penalty"},
		{engine.Sampling{PresencePenalty: nan}, -1, "presence_penalty"},
		{engine.Sampling{FrequencyPenalty: 1e9}, -1, "frequency_penalty"},
		{engine.Sampling{}, 21, "logprobs"},
		{engine.Sampling{}, -2, "logprobs"},
		{engine.Sampling{Bias: []engine.TokenBias{{Token: 9, Bias: 100}}}, -1, ""},
		{engine.Sampling{Bias: []engine.TokenBias{{Token: 10, Bias: 1}}}, -1, "logit_bias"},
		{engine.Sampling{Bias: []engine.TokenBias{{Token: 1, Bias: float32(nan)}}}, -1, "logit_bias"},
	} {
		err := ValidateSampling(&c.sampling, c.logprobs, 10)
		if c.param == "" {
			if err != nil {
				t.Errorf("%+v: %v", c.sampling, err)
			}
			continue
		}
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Param != c.param || f.Code != fault.Invalid {
			t.Errorf("%+v logprobs %d: %v, want a complaint about %s", c.sampling, c.logprobs, err, c.param)
		}
	}
}
