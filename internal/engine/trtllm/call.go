package trtllm

import (
	"strconv"

	"penstock/core/fault"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// BuildCall builds the call to /v1/completions for one choice. The server refuses unknown fields, so only
// requested ones are sent.
func (d *completionsDialect) BuildCall(p *remote.SubRequest, call *remote.Call) error {
	switch {
	case p.Request.Logprobs >= 0:
		return unsupportedError("logprobs", "the engine names the tokens of log-probabilities by their text only; ask without them")
	case p.Request.Salt.LoRA != "":
		return unsupportedError("model", "the engine takes LoRA adapters by their files only, which are not known here")
	}
	call.Path = "/v1/completions"
	b := append(call.Large.B, `{"model":`...)
	b = strictjson.AppendString(b, d.model)
	b = append(b, `,"prompt":`...)
	b = strictjson.AppendTokens(b, p.Request.Prompt, p.Generated)
	b = append(b, `,"stream":true,"stream_options":{"include_usage":true},"detokenize":false,"add_special_tokens":false`...)
	b = d.appendSampling(b, p)
	if salt := p.Request.Salt.Namespace; salt != "" {
		b = append(b, `,"cache_salt":`...)
		b = strictjson.AppendString(b, salt)
	}
	if g := p.Request.OutputSchema; g != nil {
		b = append(b, `,"response_format":{"type":"json","schema":`...)
		b = append(append(b, g.Schema...), '}')
	}
	call.Large.B = append(b, '}')
	return nil
}

func unsupportedError(param, why string) error {
	f := fault.New(fault.Unimplemented, "%s", why)
	f.Param = param
	return f
}

// appendSampling appends the sampling parameters. It omits what is off: the defaults are off, and versions
// differ in the value for off.
func (d *completionsDialect) appendSampling(b []byte, p *remote.SubRequest) []byte {
	s := &p.Request.Sampling
	number := func(name string, v, unless float64) {
		if v != unless {
			b = remote.AppendFloatField(b, name, v)
		}
	}
	number("max_tokens", float64(p.MaxTokens), -1)
	if s.Temperature > 0 {
		number("temperature", s.Temperature, -1)
		number("top_k", float64(s.TopK), 0)
		number("top_p", s.TopP, 0)
		number("min_p", s.MinP, 0)
		b = append(b, `,"seed":`...)
		b = strconv.AppendUint(b, p.Seed, 10)
	} else {
		b = append(b, `,"temperature":0,"top_k":1`...) // each alone is greedy in some versions only
	}
	if s.RepetitionPenalty != 0 {
		number("repetition_penalty", s.RepetitionPenalty, 1)
	}
	number("presence_penalty", s.PresencePenalty, 0)
	number("frequency_penalty", s.FrequencyPenalty, 0)
	b = remote.AppendStops(b, p)
	if len(s.Bias) > 0 {
		b = remote.AppendBiasField(b, s.Bias)
	}
	return b
}
