package vllm

import (
	"slices"
	"strconv"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// maxSalt is the largest length of a cache salt in bytes.
const maxSalt = 1024

// appendHead appends the start of the body of both dialects.
func appendHead(b []byte, model string, p *remote.SubRequest) ([]byte, error) {
	b = append(b, `{"model":`...)
	b = strictjson.AppendString(b, model)
	b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	if salt := p.Request.Salt.Namespace; salt != "" {
		if len(salt) > maxSalt {
			return nil, fault.InvalidParam("cache_salt", "the cache salt has %d bytes; this engine takes at most %d", len(salt), maxSalt)
		}
		b = append(b, `,"cache_salt":`...)
		b = strictjson.AppendString(b, salt)
	}
	return b, nil
}

// appendSampling appends the parameters that both dialects name alike. It writes all of them, since the
// server would take the checkpoint's recommendation for a missing one.
func appendSampling(b []byte, p *remote.SubRequest) []byte {
	s := &p.Request.Sampling
	b = appendFloatField(b, "temperature", s.Temperature)
	topP := s.TopP
	if topP == 0 {
		topP = 1
	}
	b = appendFloatField(b, "top_p", topP)
	topK := s.TopK
	if topK <= 0 {
		topK = -1
	}
	b = appendIntField(b, "top_k", int64(topK))
	b = appendFloatField(b, "min_p", s.MinP)
	penalty := s.RepetitionPenalty
	if penalty == 0 {
		penalty = 1
	}
	b = appendFloatField(b, "repetition_penalty", penalty)
	b = appendFloatField(b, "presence_penalty", s.PresencePenalty)
	b = appendFloatField(b, "frequency_penalty", s.FrequencyPenalty)
	if s.Temperature > 0 {
		b = appendIntField(b, "seed", int64(p.Seed))
	}
	b = appendIntField(b, "max_tokens", int64(p.MaxTokens))
	if p.MinTokens > 0 {
		b = appendIntField(b, "min_tokens", int64(p.MinTokens))
	}
	if p.Request.Stop.IgnoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	if len(p.Request.Stop.Tokens) > 0 {
		b = append(b, `,"stop_token_ids":`...)
		b = strictjson.AppendTokens(b, p.Request.Stop.Tokens)
	}
	if len(s.Bias) > 0 {
		b = appendBias(b, s.Bias)
	}
	return b
}

func appendFloatField(b []byte, name string, v float64) []byte {
	b = append(append(append(b, ',', '"'), name...), '"', ':')
	return strictjson.AppendFloat(b, v)
}

func appendIntField(b []byte, name string, v int64) []byte {
	b = append(append(append(b, ',', '"'), name...), '"', ':')
	return strconv.AppendInt(b, v, 10)
}

func appendBias(b []byte, bias []engine.TokenBias) []byte {
	b = append(b, `,"logit_bias":{`...)
	for i, t := range bias {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = strconv.AppendUint(b, uint64(t.Token), 10)
		b = append(b, '"', ':')
		b = strconv.AppendFloat(b, float64(t.Bias), 'g', -1, 32)
	}
	return append(b, '}')
}

// sortTop sorts the alternatives in top, best first, and keeps at most n: the server also lists the drawn
// token if it is not among the n best.
func sortTop(top []engine.TokenLogprob, n int) []engine.TokenLogprob {
	slices.SortStableFunc(top, func(a, b engine.TokenLogprob) int {
		switch {
		case a.Logprob > b.Logprob:
			return -1
		case a.Logprob < b.Logprob:
			return 1
		}
		return 0
	})
	return top[:min(len(top), max(n, 0))]
}

// parseFinish parses a finish_reason.
func parseFinish(reason []byte) (engine.Finish, error) {
	switch string(reason) {
	case "null", "":
		return engine.NotFinished, nil
	case `"stop"`:
		return engine.FinishStop, nil
	case `"length"`:
		return engine.FinishLength, nil
	case `"abort"`:
		return 0, fault.New(fault.Unavailable, "the engine gave the request up; another worker can go on")
	}
	return 0, fault.New(fault.Unavailable, "the engine ended the answer for the reason %.40q", reason)
}
