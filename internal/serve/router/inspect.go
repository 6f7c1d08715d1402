package router

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"penstock/core/fault"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

// Inspect answers a question of a router in front of this one, as the router API would: see
// [engine.Inspector].
func (r *Router) Inspect(ctx context.Context, q *engine.Inspection) ([]byte, error) {
	defer r.calls.Add(-1)
	if r.calls.Add(1) > int64(r.cfg.MaxCalls) {
		return nil, r.tooManyCalls()
	}
	answer, err := r.answerInspection(ctx, q)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return b, nil
}

func (r *Router) answerInspection(ctx context.Context, q *engine.Inspection) (any, error) {
	depth := min(q.Depth, maxDepth)
	switch q.Call {
	case engine.InspectWorkers:
		rows := slices.DeleteFunc(r.workerTable(), func(row workerRow) bool { return row.Model != q.Model })
		r.addNestedWorkers(ctx, rows, depth)
		return newRowsAnswer(rows), nil
	case engine.InspectDecisions:
		d, err := r.collectDecisions(ctx, q.RequestID, depth)
		if err == nil && d.Model != "" && !r.isSameModel(d.Model, q.Model) { // to the asker this process is another instance
			return nil, fault.New(fault.NotFound, "the request was for another model")
		}
		return d, err
	case engine.InspectExplain, engine.InspectBestWorker, engine.InspectLoads:
		req, err := inspectedRequest(q)
		if err != nil {
			return nil, err
		}
		return r.answerCall(ctx, q.Call, req, depth)
	}
	return nil, fault.New(fault.Unimplemented, "this router cannot be asked for %.40q: it is of an earlier version", q.Call)
}

// isSameModel reports whether two names belong to one model or its adapters.
func (r *Router) isSameModel(a, b string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, _ := r.poolLocked(a)
	other, _ := r.poolLocked(b)
	return a == b || of != nil && of == other
}

// appendInspected appends the request of a question about a prompt, encoded like the request of an
// attempt.
func appendInspected(dst []byte, req *route.Request) []byte {
	return engine.AppendRequest(dst, &engine.Request{
		ID: "inspect", Attempt: 1, Model: req.Model, Prompt: req.Tokens, Media: req.Media, Salt: req.Salt, Hints: dispatch.EncodeHints(req),
		Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1},
	})
}

// inspectedRequest returns the request that a question is about, as a router process routes it.
func inspectedRequest(q *engine.Inspection) (*route.Request, error) {
	var sent engine.Request
	if err := engine.DecodeRequest(q.Request, &sent); err != nil {
		return nil, err
	}
	if err := sent.Validate(); err != nil {
		return nil, err
	}
	req := new(route.Request)
	if err := dispatch.ApplyHints(sent.Hints, req); err != nil {
		return nil, err
	}
	req.Model, req.Tokens, req.Media, req.Salt = q.Model, sent.Prompt, sent.Media, sent.Salt
	return req, nil
}
