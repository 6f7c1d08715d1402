package python

import (
	"strconv"

	"penstock/core/fault"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// BuildCall builds the call to /generate for one choice. The seed and the temperature are always in it, other options where
// they are on.
func (d *functionDialect) BuildCall(p *remote.SubRequest, call *remote.Call) error {
	if p.Request.Logprobs >= 0 {
		return &fault.Error{Code: fault.Unimplemented, Param: "logprobs", Message: "functions in Python give no log-probabilities: ask without them"}
	}
	call.Path = pathGenerate
	b := append(call.Large.B, `{"request_id":`...)
	b = strictjson.AppendString(b, p.ID)
	b = append(b, `,"model":`...)
	b = strictjson.AppendString(b, d.model)
	b = append(b, `,"token_ids":`...)
	b = strictjson.AppendTokens(b, p.Request.Prompt, p.Generated)
	b = append(b, `,"eos_token_ids":`...)
	b = strictjson.AppendTokens(b, d.eos)
	if salt := p.Request.Salt.Namespace; salt != "" {
		b = append(b, `,"cache_salt":`...)
		b = strictjson.AppendString(b, salt)
	}
	b = appendStops(append(b, `,"stop_conditions":`...), p)
	b = appendSampling(append(b, `,"sampling_options":`...), p)
	call.Large.B = append(b, '}')
	return nil
}

// appendStops appends stop_conditions, of what is left to generate.
func appendStops(b []byte, p *remote.SubRequest) []byte {
	b = append(b, `{"max_tokens":`...)
	b = strconv.AppendInt(b, int64(p.MaxTokens), 10)
	return append(remote.AppendStops(b, p), '}')
}

// appendSampling appends sampling_options.
func appendSampling(b []byte, p *remote.SubRequest) []byte {
	s := &p.Request.Sampling
	b = append(b, `{"seed":`...)
	b = strconv.AppendUint(b, p.Seed, 10)
	b = remote.AppendFloatField(b, "temperature", s.Temperature)
	for _, f := range [...]struct {
		name     string
		v, other float64 // other is off besides 0
	}{
		{"top_k", float64(s.TopK), 0},
		{"top_p", s.TopP, 1},
		{"min_p", s.MinP, 0},
		{"repetition_penalty", s.RepetitionPenalty, 1},
		{"presence_penalty", s.PresencePenalty, 0},
		{"frequency_penalty", s.FrequencyPenalty, 0},
	} {
		if f.v != 0 && f.v != f.other {
			b = remote.AppendFloatField(b, f.name, f.v)
		}
	}
	if len(s.Bias) > 0 {
		b = remote.AppendBiasField(b, s.Bias)
	}
	return append(b, '}')
}
