package engine

import (
	"encoding/json"
	"math"

	"penstock/core/fault"
)

// Validate checks what every engine may rely on, whatever its model: the shape of the request and that its
// numbers are finite. It returns a *fault.Error of code Invalid that names the field, or nil.
func (r *Request) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case len(r.Prompt) == 0:
		return fault.InvalidParam("prompt", "the prompt is empty")
	case r.Choices < 1 || r.Choices > MaxChoices:
		return fault.InvalidParam("n", "n must be between 1 and %d, not %d", MaxChoices, r.Choices)
	case len(r.Generated) != 0 && len(r.Generated) != r.Choices:
		return fault.InvalidParam("generated", "earlier output is given for %d choices of %d", len(r.Generated), r.Choices)
	case len(r.Done) != 0 && len(r.Done) != r.Choices:
		return fault.InvalidParam("done", "%d choices of %d say whether they are done", len(r.Done), r.Choices)
	case r.Stop.MaxTokens < 1:
		return fault.InvalidParam("max_tokens", "max_tokens must be at least 1, not %d", r.Stop.MaxTokens)
	case r.Stop.MaxTokens > math.MaxInt32: // the wire's largest number
		return fault.InvalidParam("max_tokens", "max_tokens must be at most %d, not %d", math.MaxInt32, r.Stop.MaxTokens)
	case r.Stop.MinTokens < 0 || r.Stop.MinTokens > math.MaxInt32:
		return fault.InvalidParam("min_tokens", "min_tokens must be between 0 and %d, not %d", math.MaxInt32, r.Stop.MinTokens)
	case r.Sampling.TopK < math.MinInt32 || r.Sampling.TopK > math.MaxInt32:
		return fault.InvalidParam("top_k", "top_k must be at most %d, not %d", math.MaxInt32, r.Sampling.TopK)
	case r.Logprobs < -1:
		return fault.InvalidParam("logprobs", "logprobs must be at least 0, or -1 for none, not %d", r.Logprobs)
	}
	for _, m := range r.Media {
		if m.Start < 0 || m.End < m.Start || m.End > len(r.Prompt) {
			return fault.InvalidParam("media", "a media object fills tokens %d to %d of a prompt of %d", m.Start, m.End, len(r.Prompt))
		}
	}
	if len(r.Objects) > MaxObjects || len(r.Objects) > 0 && len(r.Objects) != len(r.Media) {
		return fault.InvalidParam("media", "%d media objects for the %d places that the prompt has for them; at most %d are allowed", len(r.Objects), len(r.Media), MaxObjects)
	}
	switch {
	case len(r.Features) > MaxFeatures:
		return fault.InvalidParam(FeaturesParam, "%d bytes of processed media; at most %d are taken", len(r.Features), MaxFeatures)
	case len(r.Features) > 0 && len(r.Media) == 0:
		return fault.InvalidParam(FeaturesParam, "processed media for a prompt that shows none")
	case len(r.Features) > 0 && len(r.Objects) > 0:
		return fault.InvalidParam(FeaturesParam, "media that are processed and media that are not, of one prompt")
	}
	if at := r.FeaturesAt; !at.IsZero() && (at.Place == "" || at.Size < 1 || at.Size > MaxFeatures || len(r.Features) > 0 || len(r.Objects) > 0 || len(r.Media) == 0) {
		return fault.InvalidParam(FeaturesParam, "%d bytes of processed media at %.100q for a prompt with %d media", at.Size, at.Place, len(r.Media))
	}
	if r.Leg > lastLeg {
		return fault.InvalidParam("leg", "leg %d is not known here", r.Leg)
	}
	if err := r.Handoff.Validate(); err != nil {
		return err
	}
	if err := r.OutputSchema.validate(); err != nil {
		return err
	}
	return r.Sampling.validate()
}

// RefuseSchema is the answer of an engine without structured output to a request with an OutputSchema:
// Unimplemented, about SchemaParam.
func RefuseSchema() error {
	err := fault.New(fault.Unimplemented, "this model's engine cannot hold its answers to a JSON schema; ask without response_format, or ask another model")
	err.Param = SchemaParam
	return err
}

// FeaturesParam names the Features of a request in errors. An Unimplemented error about it says that the
// request may be served if its media are sent as the client sent them.
const FeaturesParam = "features"

// RefuseFeatures is the answer of an engine to Features that it does not take: Unimplemented, about
// FeaturesParam. The cause is for the log; it may be nil.
func RefuseFeatures(cause error) error {
	return &fault.Error{
		Code: fault.Unimplemented, Param: FeaturesParam, Err: cause,
		Message: "this model's engine does not take media that another one has processed: send them as they are",
	}
}

// validate checks what adapters rely on when they forward a schema: that it is JSON of a bounded size. nil is
// valid.
func (g *OutputSchema) validate() error {
	switch {
	case g == nil:
		return nil
	case len(g.Schema) == 0:
		return fault.InvalidParam(SchemaParam, "the JSON schema is empty")
	case len(g.Schema) > MaxSchema:
		return fault.InvalidParam(SchemaParam, "the JSON schema has %d bytes; at most %d are taken", len(g.Schema), MaxSchema)
	case !json.Valid(g.Schema):
		return fault.InvalidParam(SchemaParam, "the JSON schema is not valid JSON")
	}
	return nil
}

func (s *Sampling) validate() error {
	for _, f := range [...]struct {
		name string
		v    float64
	}{
		{"temperature", s.Temperature},
		{"top_p", s.TopP},
		{"min_p", s.MinP},
		{"repetition_penalty", s.RepetitionPenalty},
		{"presence_penalty", s.PresencePenalty},
		{"frequency_penalty", s.FrequencyPenalty},
	} {
		if math.IsNaN(f.v) || math.IsInf(f.v, 0) {
			return fault.InvalidParam(f.name, "%s must be a finite number", f.name)
		}
	}
	for _, b := range s.Bias {
		if v := float64(b.Bias); math.IsNaN(v) || math.IsInf(v, 0) {
			return fault.InvalidParam("logit_bias", "the bias of every token must be a finite number")
		}
	}
	return nil
}

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
