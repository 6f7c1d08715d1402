package llamacpp

import (
	"cmp"
	"context"
	"net/http"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// BuildCall builds the call to /completion for one choice.
//
// llama.cpp supports neither stop tokens nor a least number of tokens. The adapter watches the response for
// stop tokens; min_tokens takes a call of its own in which no stop token can be drawn.
func (d *completionDialect) BuildCall(p *remote.SubRequest, call *remote.Call) error {
	adapter, err := d.adapterID(p.Request.Salt.LoRA)
	if err != nil {
		return err
	}
	if p.Request.OutputSchema != nil && p.MinTokens > 0 && !p.Request.Stop.IgnoreEOS {
		return fault.InvalidParam("min_tokens", "the engine cannot hold an answer to a schema and to a least number of tokens; ask without one of them")
	}
	call.Path = "/completion"
	call.Wait = -1 // the server sends no header while a request waits for a slot
	b := append(call.Large.B, `{"prompt":`...)
	b = strictjson.AppendTokens(b, p.Request.Prompt, p.Generated)
	b = append(b, `,"return_tokens":true,"stream":`...)
	leg := d.planCall(p)
	if leg.whole {
		b = append(b, "false"...)
	} else {
		b = append(b, `true,"return_progress":true`...)
	}
	b = remote.AppendIntField(b, "n_predict", int64(leg.tokens))
	b = append(b, `,"cache_prompt":`...)
	b = strconv.AppendBool(b, !p.Mixed)
	if p.Slot >= 0 {
		b = remote.AppendIntField(b, "id_slot", int64(p.Slot))
	}
	b = d.appendSampling(b, p, leg)
	if adapter >= 0 {
		b = append(b, `,"lora":[{"id":`...)
		b = strconv.AppendInt(b, int64(adapter), 10)
		b = append(b, `,"scale":1}]`...)
	}
	if g := p.Request.OutputSchema; g != nil {
		b = append(b, `,"json_schema":`...)
		b = append(b, g.Schema...)
	}
	call.Large.B = append(b, '}')
	return nil
}

// adapterID returns the engine's id of a LoRA adapter, -1 for none.
func (d *completionDialect) adapterID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	id, ok := d.adapters[name]
	if !ok {
		return 0, fault.New(fault.NotFound, "the engine has no LoRA adapter %.100q", name)
	}
	return id, nil
}

// callPlan says what one of several calls for a choice asks for.
type callPlan struct {
	tokens int
	// whole asks for a single response with all tokens: a stream omits tokens whose text is not a whole
	// character.
	whole bool
	// noStop forbids all stop tokens.
	noStop bool
}

// planCall plans the next call for a SubRequest.
func (d *completionDialect) planCall(p *remote.SubRequest) callPlan {
	if p.Request.OutputSchema != nil {
		return callPlan{tokens: p.MaxTokens, whole: true} // a call cannot continue in the middle of a schema
	}
	l := callPlan{tokens: p.MaxTokens, noStop: p.MinTokens > 0 && len(d.stopTokens(p)) > 0}
	if l.noStop {
		l.tokens = p.MinTokens
	}
	if p.Hole > 0 {
		l.whole, l.tokens = true, min(l.tokens, p.Hole)
	}
	return l
}

// stopTokens returns the tokens that end the choice.
func (d *completionDialect) stopTokens(p *remote.SubRequest) []kv.Token {
	if p.Request.Stop.IgnoreEOS {
		return p.Request.Stop.Tokens
	}
	return append(p.Request.Stop.Tokens[:len(p.Request.Stop.Tokens):len(p.Request.Stop.Tokens)], d.eos...)
}

// appendSampling appends the sampling parameters. It writes everything that the engine's flags could set: a
// request must mean the same on every server.
func (d *completionDialect) appendSampling(b []byte, p *remote.SubRequest, leg callPlan) []byte {
	s := &p.Request.Sampling
	number := func(name string, v float64) { b = remote.AppendFloatField(b, name, v) }
	number("temperature", s.Temperature)
	number("top_k", float64(s.TopK))
	number("top_p", cmp.Or(s.TopP, 1))
	number("min_p", s.MinP)
	number("repeat_penalty", cmp.Or(s.RepetitionPenalty, 1))
	number("repeat_last_n", float64(d.context)) // the whole context; newer servers refuse -1
	number("presence_penalty", s.PresencePenalty)
	number("frequency_penalty", s.FrequencyPenalty)
	b = append(b, `,"typical_p":1,"dynatemp_range":0,"mirostat":0,"dry_multiplier":0,"xtc_probability":0,"seed":`...)
	b = strconv.AppendUint(b, uint64(foldSeed(p.Seed)), 10)
	if p.Request.OutputSchema == nil && (p.Request.Stop.IgnoreEOS || leg.noStop) {
		b = append(b, `,"ignore_eos":true`...)
	}
	if p.Request.Logprobs >= 0 {
		b = append(b, `,"post_sampling_probs":false,"n_probs":`...)
		b = strconv.AppendInt(b, int64(max(p.Request.Logprobs, 1)), 10)
	}
	return d.appendBias(b, p, leg)
}

// appendBias appends logit_bias: [token, number], or [token, false] for a token that is never drawn.
func (d *completionDialect) appendBias(b []byte, p *remote.SubRequest, leg callPlan) []byte {
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
		b = append(strictjson.AppendFloat(b, float64(t.Bias)), ']')
	}
	if leg.noStop {
		for _, t := range d.stopTokens(p) {
			entry(t)
			b = append(b, "false]"...)
		}
	}
	if n > 0 {
		b = append(b, ']')
	}
	return b
}

// foldSeed folds a seed into llama.cpp's 32 bits, where all ones mean a random seed.
func foldSeed(seed uint64) uint32 {
	folded := uint32(seed ^ seed>>32)
	return min(folded, 1<<32-2)
}

// Preprocess lets the server make the tokens of a text by /tokenize, and the text of a conversation by
// /apply-template.
func (e *Engine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	var chat []byte
	if len(req.Chat) > 0 {
		c, err := prep.DecodeChat(req.Chat)
		if err != nil {
			return nil, err
		}
		chat = prep.AppendChat(nil, c)
	}
	if !e.native {
		return nil, fault.New(fault.Unimplemented, "the engine makes no prompts: name the directory of its model with --model-path, and they are made here")
	}
	return e.FetchPrompt(ctx, req.Attempt, func(ctx context.Context, p *engine.Preprocessed) error {
		return e.fetchPrompt(ctx, req, chat, p)
	})
}

// fetchPrompt asks for the tokens and reads them into p.
func (e *Engine) fetchPrompt(ctx context.Context, req *engine.PreprocessRequest, chat []byte, p *engine.Preprocessed) error {
	text, special, add := req.Text, req.ParseSpecial, req.AddSpecial
	if chat != nil {
		var made struct {
			Prompt *string `json:"prompt"`
		}
		if err := e.client.DoJSON(ctx, &remote.Call{Path: "/apply-template", Body: chat}, &made); remote.IsNotFound(err) {
			return fault.New(fault.Unimplemented, "the engine's version has no /apply-template: take a newer one, or name the directory of its model with --model-path")
		} else if err != nil {
			return err
		}
		if made.Prompt == nil {
			return fault.New(fault.Unavailable, "the engine answers a question for a prompt with what is none")
		}
		// The server's own chat endpoint does so too.
		text, special, add = *made.Prompt, true, true
	}
	body := strictjson.AppendString([]byte(`{"content":`), text)
	body = strconv.AppendBool(append(body, `,"add_special":`...), add)
	body = strconv.AppendBool(append(body, `,"parse_special":`...), special)
	answer, err := e.client.ReadBody(ctx, &remote.Call{Method: http.MethodPost, Path: "/tokenize", Body: append(body, '}')}, remote.MaxEvent)
	if err != nil {
		return err
	}
	return remote.ParseTokenize(answer, p)
}
