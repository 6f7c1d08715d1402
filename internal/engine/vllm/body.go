package vllm

import (
	"cmp"
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
	b = appendLeg(b, p)
	if salt := p.Request.Salt.Namespace; salt != "" {
		if len(salt) > maxSalt {
			return nil, fault.InvalidParam("cache_salt", "the cache salt has %d bytes; this engine takes at most %d", len(salt), maxSalt)
		}
		b = append(b, `,"cache_salt":`...)
		b = strictjson.AppendString(b, salt)
	}
	return b, nil
}

// prefillParams are the kv_transfer_params of a prefill leg, with all the members which vLLM's own examples send.
const prefillParams = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// appendLeg appends whether the answer is a stream, and what the engine is told of the transfer of KV blocks. Streams have
// no kv_transfer_params, so that the answer of a prefill leg is none.
func appendLeg(b []byte, p *remote.SubRequest) []byte {
	if p.IsPrefillLeg() {
		return append(b, `,"stream":false,"kv_transfer_params":`+prefillParams...)
	}
	b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	if h := p.Handoff(); h != nil {
		b = append(append(b, `,"kv_transfer_params":`...), h...)
	}
	return b
}

// appendSampling appends the parameters that both dialects name alike. It writes all of them, since the
// server would take the checkpoint's recommendation for a missing one.
func appendSampling(b []byte, p *remote.SubRequest) []byte {
	s := &p.Request.Sampling
	b = remote.AppendFloatField(b, "temperature", s.Temperature)
	b = remote.AppendFloatField(b, "top_p", cmp.Or(s.TopP, 1))
	b = remote.AppendIntField(b, "top_k", int64(cmp.Or(max(s.TopK, 0), -1)))
	b = remote.AppendFloatField(b, "min_p", s.MinP)
	b = remote.AppendFloatField(b, "repetition_penalty", cmp.Or(s.RepetitionPenalty, 1))
	b = remote.AppendFloatField(b, "presence_penalty", s.PresencePenalty)
	b = remote.AppendFloatField(b, "frequency_penalty", s.FrequencyPenalty)
	if s.Temperature > 0 {
		b = remote.AppendIntField(b, "seed", int64(p.Seed))
	}
	b = remote.AppendIntField(b, "max_tokens", int64(p.MaxTokens))
	b = remote.AppendStops(b, p)
	if len(s.Bias) > 0 {
		b = appendBias(b, s.Bias)
	}
	return b
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
