package servetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

var _ engine.PassthroughEngine = (*Engine)(nil)

// passBody is the part of a passthrough body that the engine reads.
type passBody struct {
	MaxTokens int  `json:"max_tokens"`
	Refuse    bool `json:"refuse"` // with status 422
	Fill      int  `json:"fill"`   // number of additional spaces in each piece
}

// PassthroughPaths implements engine.Passer.
func (e *Engine) PassthroughPaths() []string { return e.cfg.Passes }

// PassThrough implements engine.Passer: each token of the answer is an event {"token":N}, or all tokens are
// the array of one answer.
func (e *Engine) PassThrough(ctx context.Context, req *engine.PassthroughRequest, sink func(*engine.PassthroughChunk) error) error {
	if e.cfg.FailPass != nil {
		if err := e.cfg.FailPass(req); err != nil {
			return err
		}
	}
	body := passBody{MaxTokens: e.cfg.Card.DefaultMaxTokens}
	if err := json.Unmarshal(req.Body, &body); err != nil {
		return fault.New(fault.Invalid, "the body is no JSON of mine")
	}
	if err := e.waitTurn(ctx); err != nil {
		return err
	}
	defer e.finishRequest()
	send := func(p engine.PassthroughChunk) error {
		p.Attempt = req.Attempt
		return sink(&p)
	}
	if body.Refuse {
		return e.refusePass(send)
	}
	accepted := engine.PassthroughChunk{Accepted: true, Status: 200, Type: "application/json"}
	if req.Stream {
		accepted.Type = "text/event-stream"
	}
	if err := send(accepted); err != nil {
		return err
	}
	cached, prompt := 0, req.Prompt
	if len(prompt) > 0 {
		cached = e.storePrompt(prompt)
	} else {
		prompt = []kv.Token{0}
	}
	return e.answerPass(ctx, req, &body, prompt, cached, send)
}

// answerPass sends the tokens at the engine's pace, and the end.
func (e *Engine) answerPass(ctx context.Context, req *engine.PassthroughRequest, body *passBody, prompt []kv.Token, cached int, send func(engine.PassthroughChunk) error) error {
	var all []kv.Token
	fill := strings.Repeat(" ", body.Fill)
	for pos := range body.MaxTokens {
		t := time.NewTimer(e.cfg.Step)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		token := OutputToken(prompt, 0, pos)
		all = append(all, token)
		if req.Stream {
			if err := send(engine.PassthroughChunk{Data: fmt.Appendf(nil, "data: {\"token\":%d%s}\n\n", token, fill), Tokens: 1}); err != nil {
				return err
			}
		}
	}
	last := engine.PassthroughChunk{Last: true, PromptTokens: len(prompt), OutputTokens: len(all), Cached: cached}
	if e.cfg.Cached == ReportsNever {
		last.PromptTokens, last.OutputTokens, last.Cached = engine.CachedUnknown, engine.CachedUnknown, engine.CachedUnknown
	}
	if req.Stream {
		last.Data = []byte("data: [DONE]\n\n")
	} else {
		b, err := json.Marshal(map[string]any{"tokens": all})
		if err != nil {
			return err
		}
		last.Data, last.Tokens = fmt.Appendf(nil, "%s%s\n", b, fill), len(all)
	}
	return send(last)
}

// refusePass answers like an engine which finds the request invalid.
func (e *Engine) refusePass(send func(engine.PassthroughChunk) error) error {
	if err := send(engine.PassthroughChunk{Accepted: true, Status: 422, Type: "application/problem+json"}); err != nil {
		return err
	}
	const unknown = engine.CachedUnknown
	return send(engine.PassthroughChunk{Data: []byte(`{"detail":"no"}`), Last: true, PromptTokens: unknown, OutputTokens: unknown, Cached: unknown})
}
