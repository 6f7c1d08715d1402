package llamacpp

import (
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine/remote"
)

// Call asks for one choice by /completion.
//
// llama.cpp knows neither stop tokens nor a least number of tokens. Of the first the answer is
// watched here, the second is a call of its own in which no stop token can be drawn.
func (d *dialect) Call(p *remote.Part, call *remote.Call) error {
	adapter, err := d.adapter(p.Request.Salt.LoRA)
	if err != nil {
		return err
	}
	if p.Request.Guide != nil && p.MinTokens > 0 && !p.Request.Stop.IgnoreEOS {
		return fault.Param("min_tokens", "the engine cannot hold an answer to a schema and to a least number of tokens; ask without one of them")
	}
	call.Path = "/completion"
	call.Wait = -1 // a request that waits for a slot has no header
	b := append(call.Large.B, `{"prompt":`...)
	b = remote.AppendTokens(b, p.Request.Prompt, p.Generated)
	b = append(b, `,"return_tokens":true,"stream":`...)
	leg := d.leg(p)
	if leg.whole {
		b = append(b, "false"...)
	} else {
		b = append(b, `true,"return_progress":true`...)
	}
	b = append(b, `,"n_predict":`...)
	b = strconv.AppendInt(b, int64(leg.tokens), 10)
	b = append(b, `,"cache_prompt":`...)
	b = strconv.AppendBool(b, !p.Mixed)
	if p.Slot >= 0 {
		b = append(b, `,"id_slot":`...)
		b = strconv.AppendInt(b, int64(p.Slot), 10)
	}
	b = d.sampling(b, p, leg)
	if adapter >= 0 {
		b = append(b, `,"lora":[{"id":`...)
		b = strconv.AppendInt(b, int64(adapter), 10)
		b = append(b, `,"scale":1}]`...)
	}
	if g := p.Request.Guide; g != nil {
		b = append(b, `,"json_schema":`...)
		b = append(b, g.Schema...)
	}
	call.Large.B = append(b, '}')
	return nil
}

// adapter returns the engine's number of a LoRA adapter, -1 for none.
func (d *dialect) adapter(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	id, ok := d.adapters[name]
	if !ok {
		return 0, fault.New(fault.NotFound, "the engine has no LoRA adapter %.100q", name)
	}
	return id, nil
}

// leg is what one of several calls for a choice is about.
type leg struct {
	tokens int
	// whole has the answer come at its end, with all its tokens: a stream leaves out those
	// whose text is not a whole character.
	whole bool
	// least is a leg in which no stop token can be drawn.
	least bool
}

// leg returns what the next call for a part is about.
func (d *dialect) leg(p *remote.Part) leg {
	if p.Request.Guide != nil {
		return leg{tokens: p.MaxTokens, whole: true} // there is no going on in the middle of a schema
	}
	l := leg{tokens: p.MaxTokens, least: p.MinTokens > 0 && len(d.stops(p)) > 0}
	if l.least {
		l.tokens = p.MinTokens
	}
	if p.Hole > 0 {
		l.whole, l.tokens = true, min(l.tokens, p.Hole)
	}
	return l
}

// stops returns the tokens that end the choice.
func (d *dialect) stops(p *remote.Part) []kv.Token {
	if p.Request.Stop.IgnoreEOS {
		return p.Request.Stop.Tokens
	}
	return append(p.Request.Stop.Tokens[:len(p.Request.Stop.Tokens):len(p.Request.Stop.Tokens)], d.eos...)
}

// sampling appends how tokens are drawn. Everything that the engine's own flags could set is
// said: a request must mean the same on every server.
func (d *dialect) sampling(b []byte, p *remote.Part, leg leg) []byte {
	s := &p.Request.Sampling
	number := func(name string, v float64) {
		b = append(b, ',', '"')
		b = append(b, name...)
		b = append(b, '"', ':')
		b = remote.AppendFloat(b, v)
	}
	number("temperature", s.Temperature)
	number("top_k", float64(s.TopK))
	number("top_p", orOne(s.TopP))
	number("min_p", s.MinP)
	number("repeat_penalty", orOne(s.RepetitionPenalty))
	number("repeat_last_n", float64(d.context)) // all of it; newer servers refuse -1
	number("presence_penalty", s.PresencePenalty)
	number("frequency_penalty", s.FrequencyPenalty)
	b = append(b, `,"typical_p":1,"dynatemp_range":0,"mirostat":0,"dry_multiplier":0,"xtc_probability":0,"seed":`...)
	b = strconv.AppendUint(b, uint64(seed32(p.Seed)), 10)
	if p.Request.Guide == nil && (p.Request.Stop.IgnoreEOS || leg.least) {
		b = append(b, `,"ignore_eos":true`...)
	}
	if p.Request.Logprobs >= 0 {
		b = append(b, `,"post_sampling_probs":false,"n_probs":`...)
		b = strconv.AppendInt(b, int64(max(p.Request.Logprobs, 1)), 10)
	}
	return d.bias(b, p, leg)
}

// bias appends logit_bias: [token, number], or [token, false] for one that is never drawn.
func (d *dialect) bias(b []byte, p *remote.Part, leg leg) []byte {
	n := 0
	entry := func(t kv.Token) {
		if n++; n == 1 {
			b = append(b, `,"logit_bias":[[`...)
		} else {
			b = append(b, ",["...)
		}
		b = strconv.AppendUint(b, uint64(t), 10)
		b = append(b, ',')
	}
	for _, t := range p.Request.Sampling.Bias {
		entry(t.Token)
		b = append(remote.AppendFloat(b, float64(t.Bias)), ']')
	}
	if leg.least {
		for _, t := range d.stops(p) {
			entry(t)
			b = append(b, "false]"...)
		}
	}
	if n > 0 {
		b = append(b, ']')
	}
	return b
}

func orOne(v float64) float64 {
	if v == 0 {
		return 1
	}
	return v
}

// seed32 folds a seed into the 32 bits that llama.cpp takes, of which all ones mean a random one.
func seed32(seed uint64) uint32 {
	folded := uint32(seed ^ seed>>32)
	return min(folded, 1<<32-2)
}
