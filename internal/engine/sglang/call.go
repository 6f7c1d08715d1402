package sglang

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// BuildCall builds the call to /generate for one choice.
func (d *generateDialect) BuildCall(p *remote.SubRequest, call *remote.Call) error {
	if err := d.checkSupported(p); err != nil {
		return err
	}
	call.Path = "/generate"
	b := append(call.Large.B, `{"rid":`...)
	b = strconv.AppendQuote(b, p.ID)
	b = append(b, `,"input_ids":`...)
	b = d.appendPrompt(b, p)
	b = d.appendMedia(b, p.Request)
	b = append(b, `,"stream":true`...)
	if p.Request.Logprobs >= 0 {
		b = append(b, `,"return_logprob":true,"logprob_start_len":-1,"top_logprobs_num":`...)
		b = strconv.AppendInt(b, int64(p.Request.Logprobs), 10)
	}
	if name := p.Request.Salt.LoRA; name != "" {
		b = append(b, `,"lora_path":`...)
		b = strictjson.AppendString(b, name)
	}
	if salt := p.Request.Salt.Namespace; salt != "" {
		for _, field := range d.saltFields {
			b = strictjson.AppendString(remote.AppendFieldName(b, field), salt)
		}
	}
	if d.rank >= 0 {
		b = remote.AppendIntField(b, "routed_dp_rank", int64(d.rank))
		b = remote.AppendIntField(b, "data_parallel_rank", int64(d.rank))
	}
	b = append(b, `,"sampling_params":`...)
	call.Large.B = append(d.appendSampling(b, p), '}')
	return nil
}

// checkSupported returns an error for parameters that SGLang does not support.
func (d *generateDialect) checkSupported(p *remote.SubRequest) error {
	s := &p.Request.Sampling
	for _, f := range [...]struct {
		name      string
		v         float64
		low, high float64
	}{
		{"presence_penalty", s.PresencePenalty, -2, 2},
		{"frequency_penalty", s.FrequencyPenalty, -2, 2},
		{"repetition_penalty", s.RepetitionPenalty, 0, 2},
	} {
		if f.v < f.low || f.v > f.high {
			return fault.InvalidParam(f.name, "%s is %v; the engine takes %v to %v", f.name, f.v, f.low, f.high)
		}
	}
	return d.checkMedia(p.Request)
}

// appendSampling appends sampling_params.
func (d *generateDialect) appendSampling(b []byte, p *remote.SubRequest) []byte {
	s := &p.Request.Sampling
	field := func(name string) { b = remote.AppendFieldName(b, name) }
	float := func(name string, v float64) { b = remote.AppendFloatField(b, name, v) }
	b = append(b, `{"max_new_tokens":`...)
	b = strconv.AppendInt(b, int64(p.MaxTokens), 10)
	float("temperature", s.Temperature)
	// Zero means off; write it, or the checkpoint's defaults would apply.
	float("top_p", cmp.Or(s.TopP, 1))
	b = remote.AppendIntField(b, "top_k", int64(cmp.Or(max(s.TopK, 0), -1)))
	float("min_p", s.MinP)
	float("repetition_penalty", cmp.Or(s.RepetitionPenalty, 1))
	if s.PresencePenalty != 0 {
		float("presence_penalty", s.PresencePenalty)
	}
	if s.FrequencyPenalty != 0 {
		float("frequency_penalty", s.FrequencyPenalty)
	}
	if p.MinTokens > 0 {
		b = remote.AppendIntField(b, "min_new_tokens", int64(p.MinTokens))
	}
	if s.Temperature > 0 {
		// It has an effect if the server runs with deterministic inference.
		field("sampling_seed")
		b = strconv.AppendUint(b, p.Seed&(1<<31-1), 10)
	}
	if len(p.Request.Stop.Tokens) > 0 {
		field("stop_token_ids")
		b = strictjson.AppendTokens(b, p.Request.Stop.Tokens)
	}
	if p.Request.Stop.IgnoreEOS {
		field("ignore_eos")
		b = append(b, "true"...)
	}
	if len(s.Bias) > 0 {
		b = remote.AppendBiasField(b, s.Bias)
	}
	if p.Request.OutputSchema != nil {
		field("json_schema")
		b = strictjson.AppendString(b, string(p.Request.OutputSchema.Schema))
	}
	return append(b, `,"skip_special_tokens":false,"no_stop_trim":true}`...)
}

// Preprocess lets the server make the tokens of a text or a conversation by /tokenize. Not all versions take
// conversations there. The server parses the names of special tokens in a text as those tokens, also if the
// request does not ask for it.
func (e *Engine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	body, err := e.tokenizeRequest(req)
	if err != nil {
		return nil, err
	}
	return e.FetchPrompt(ctx, req.Attempt, func(ctx context.Context, p *engine.Preprocessed) error {
		return e.fetchTokens(ctx, body, len(req.Chat) > 0, p)
	})
}

// tokenizeRequest returns the body that asks for the tokens of a request.
func (e *Engine) tokenizeRequest(req *engine.PreprocessRequest) ([]byte, error) {
	model := e.model
	if card := e.Card(); req.Model != "" && !card.HasName(req.Model) {
		model = req.Model
	}
	body := strictjson.AppendString([]byte(`{"model":`), model)
	if len(req.Chat) == 0 {
		body = strictjson.AppendString(append(body, `,"prompt":`...), req.Text)
		body = append(body, `,"add_special_tokens":`...)
		return append(strconv.AppendBool(body, req.AddSpecial), '}'), nil
	}
	chat, err := prep.DecodeChat(req.Chat)
	if err != nil {
		return nil, err
	}
	return append(append(body, ','), prep.AppendChat(nil, chat)[1:]...), nil
}

// fetchTokens asks for the tokens and reads them into p.
func (e *Engine) fetchTokens(ctx context.Context, body []byte, chat bool, p *engine.Preprocessed) error {
	a, err := e.client.Do(ctx, &remote.Call{Path: "/tokenize", Body: body})
	if err != nil {
		return err
	}
	defer a.Close()
	switch {
	case a.Status == http.StatusNotFound:
		return noPromptsError()
	case !a.OK():
		err := a.RefusalError()
		if said := err.Error(); chat && strings.Contains(said, "prompt") && strings.Contains(strings.ToLower(said), "required") {
			return noPromptsError() // it requires a text in place of the conversation
		}
		return err
	}
	text, err := a.ReadAll(ctx)
	if err != nil {
		return err
	}
	return remote.ParseTokenize(text, p)
}

func noPromptsError() error {
	return fault.New(fault.Unimplemented, "the engine makes no prompts of this: name the directory of its model with --model-path, and they are made here")
}
