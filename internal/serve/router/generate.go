package router

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	mathrand "math/rand/v2"
	"net/http"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
	"penstock/internal/edge/openai"
	"penstock/internal/engine"
)

// generateBody is the body of POST /v1/router/generate.
type generateBody struct {
	Model    string          `json:"model"`
	TokenIDs []kv.Token      `json:"token_ids"`
	Stop     stopConditions  `json:"stop_conditions"`
	Sampling json.RawMessage `json:"sampling_options"`
	Override route.Override  `json:"router_config_override"`
	WorkerID kv.WorkerID     `json:"worker_id"`
	Rank     uint32          `json:"dp_rank"`
}

type stopConditions struct {
	MaxTokens int        `json:"max_tokens"`
	MinTokens int        `json:"min_tokens"`
	Tokens    []kv.Token `json:"stop_token_ids"`
	IgnoreEOS bool       `json:"ignore_eos"`
}

// generateEvent is one event of the answer.
type generateEvent struct {
	TokenIDs []kv.Token `json:"token_ids"`
	Cached   int        `json:"cached_tokens,omitempty"` // with the first tokens, or with the last if it was unknown then
	Finish   string     `json:"finish_reason,omitempty"` // stop or length
	WorkerID uint64     `json:"worker_id"`
	Rank     uint32     `json:"dp_rank"`
}

// serveGenerate routes token ids to a worker and streams token ids back. It makes one attempt: request
// migration is the frontend's work.
func (r *Router) serveGenerate(w http.ResponseWriter, req *http.Request) error {
	if r.planes.RPC == nil {
		return fault.New(fault.Unimplemented, "this router has no request plane: ask best_worker and call the worker")
	}
	var body generateBody
	if err := r.readJSON(w, req, &body); err != nil {
		return err
	}
	ereq, err := r.engineRequest(&body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	asked := &route.Request{
		ID: ereq.ID, Attempt: ereq.Attempt, Model: body.Model, Tokens: body.TokenIDs, Override: body.Override,
		Pin: kv.Worker{ID: body.WorkerID, Rank: body.Rank},
	}
	d, err := r.Route(ctx, asked)
	if err != nil {
		return err
	}
	ereq.Split = r.SplitSettings(asked)
	held := dispatch.HoldReservation(r, ereq.ID, ereq.Attempt)
	defer held.Free()

	var out *sseStream // set once a worker has accepted
	var delta engine.Delta
	fresh, output := 0, 0 // tokens that are not counted as load yet, and all
	var report engine.CachedReport
	err = r.planes.RPC.Call(ctx, d.Addr, engine.MethodGenerate, engine.AppendRequest(nil, ereq), func(frame []byte) error {
		if err := engine.DecodeDelta(frame, &delta); err != nil {
			return err
		}
		if out == nil {
			out = newSSEStream(w)
		}
		if delta.Accepted {
			return out.writeText("")
		}
		if delta.Split != nil {
			r.RecordSplit(ereq.ID, ereq.Attempt, delta.Split)
		}
		cached, news := report.ObserveDelta(&delta)
		if news {
			r.RecordFirstToken(ereq.ID, ereq.Attempt, cached)
		}
		output += len(delta.Tokens)
		if fresh += len(delta.Tokens); fresh >= d.BlockSize {
			r.RecordOutput(ereq.ID, ereq.Attempt, fresh)
			fresh = 0
		}
		b, err := json.Marshal(generateEvent{append([]kv.Token{}, delta.Tokens...), max(0, cached), finishName(delta.Finish), uint64(d.Worker.ID), d.Worker.Rank})
		if err != nil {
			return err
		}
		return out.writeText("data: %s\n\n", b)
	})
	if err == nil {
		held.FinishAnswer(output)
	}
	if err != nil && ctx.Err() == nil && fault.CodeOf(err).Class().Retryable {
		r.ReportFailure(d.Worker, err)
	}
	if out == nil {
		return err
	}
	if err != nil {
		_ = out.writeText("data: %s\n\n", openai.AppendError(nil, err))
		return nil
	}
	_ = out.writeText("data: [DONE]\n\n")
	return nil
}

// engineRequest builds the engine request of a body and checks it against the model card.
func (r *Router) engineRequest(body *generateBody) (*engine.Request, error) {
	m, err := r.servedModel(body.Model)
	if err != nil {
		return nil, err
	}
	card, salt := &m.Card, kv.Salt{}
	if m.Parent != "" {
		salt.LoRA = card.Name
	}
	room := card.ContextLength - len(body.TokenIDs)
	switch {
	case len(body.TokenIDs) == 0:
		return nil, fault.InvalidParam("token_ids", "token_ids is missing or empty")
	case room < 1:
		return nil, fault.InvalidParam("token_ids", "the prompt has %d tokens and the context of %s is %d", len(body.TokenIDs), card.Name, card.ContextLength)
	case body.Stop.MaxTokens < 0 || body.Stop.MinTokens < 0:
		return nil, fault.InvalidParam("stop_conditions", "max_tokens and min_tokens must not be negative")
	}
	limit := body.Stop.MaxTokens
	if limit == 0 {
		limit = card.DefaultMaxTokens
	}
	if limit == 0 {
		limit = room
	}
	limit = min(limit, room)
	if body.Stop.MinTokens > limit {
		return nil, fault.InvalidParam("stop_conditions.min_tokens", "min_tokens is %d and at most %d tokens can be generated", body.Stop.MinTokens, limit)
	}
	sampling := card.Defaults
	sampling.Seed = mathrand.Uint64()
	if len(body.Sampling) > 0 {
		if err := decodeJSON(bytes.NewReader(body.Sampling), &sampling); err != nil {
			return nil, err
		}
	}
	ereq := &engine.Request{
		ID: "router-" + rand.Text(), Attempt: 1, Model: card.Name, Salt: salt, Prompt: body.TokenIDs, Choices: 1, Sampling: sampling,
		Stop:     engine.Stop{MaxTokens: limit, MinTokens: body.Stop.MinTokens, Tokens: body.Stop.Tokens, IgnoreEOS: body.Stop.IgnoreEOS},
		Logprobs: -1,
	}
	return ereq, ereq.Validate()
}

// servedModel returns a model that has workers.
func (r *Router) servedModel(name string) (*catalog.Model, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mu.snapshot.Find(name)
	switch {
	case m == nil:
		return nil, unknownModel(name)
	case len(m.Workers) == 0:
		return nil, fault.New(fault.Unavailable, "no worker serves %s now; start one or try again", m.Card.Name)
	}
	return m, nil
}

func finishName(f engine.Finish) string {
	switch f {
	case engine.FinishStop:
		return "stop"
	case engine.FinishLength:
		return "length"
	}
	return ""
}
