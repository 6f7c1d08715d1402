package router

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// Prompter makes the prompt that a worker would be given. The composition root implements it, because
// it has the tokenizers.
type Prompter interface {
	// MakePrompt returns the prompt of a chat completion request, or of a completion request with one
	// prompt. The error is a *fault.Error.
	MakePrompt(ctx context.Context, q *api.Request) (prep.Prompt, error)
}

// serveQuestion returns the handler of a router API call about a prompt.
func (r *Router) serveQuestion(call string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, req *http.Request) error {
		q, shown, err := r.readQuestion(w, req)
		if err != nil {
			return err
		}
		answer, err := r.answerCall(req.Context(), call, q, maxDepth)
		if err != nil {
			return err
		}
		if a, ok := answer.(interface{ show(askedMedia) }); ok {
			a.show(shown)
		}
		return writeJSON(w, answer)
	}
}

// answerCall returns the answer of a router API call about a request.
func (r *Router) answerCall(ctx context.Context, call string, req *route.Request, depth int) (any, error) {
	switch call {
	case engine.InspectBestWorker:
		return r.findBestWorker(ctx, req, depth)
	case engine.InspectLoads:
		return r.potentialLoads(ctx, req, depth)
	}
	return r.answerExplain(ctx, req, depth)
}

// askRoutersAbout puts a question about a request to the router processes among workers.
func (r *Router) askRoutersAbout(ctx context.Context, call string, req *route.Request, workers []kv.WorkerID, depth int) []nestedAnswer {
	routers := r.routersAmong(workers)
	if len(routers) == 0 || depth <= 0 {
		return nil
	}
	return r.askRouters(ctx, routers, engine.Inspection{Call: call, Request: appendInspected(nil, req)}, depth)
}

// readQuestion reads a question about a prompt.
func (r *Router) readQuestion(w http.ResponseWriter, req *http.Request) (_ *route.Request, none askedMedia, _ error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.cfg.MaxBodyBytes))
	if err != nil {
		return nil, none, explainJSON(err)
	}
	q, err := decodeQuery(body)
	if err != nil {
		return nil, none, err
	}
	if _, err := r.findPool(q.request.Model); err != nil {
		return nil, none, err
	}
	prompt := prep.Prompt{Tokens: q.tokens}
	if len(q.tokens) == 0 {
		if r.prompter == nil {
			return nil, none, fault.New(fault.Unimplemented, "this router has no tokenizer: give token_ids (penstock route --tokens)")
		}
		if prompt, err = r.prompter.MakePrompt(req.Context(), q.request); err != nil {
			return nil, none, err
		}
	}
	pin, err := q.request.Ext.PinnedWorker()
	if err != nil {
		return nil, none, err
	}
	return &route.Request{
		Model: q.request.Model, Tokens: prompt.Tokens, Media: prompt.Media, Salt: kv.Salt{Namespace: q.request.CacheSalt},
		ExpectedOutput: q.request.Ext.ExpectedOutput, Override: q.policyOverride(), Pin: pin,
		Allowed: q.request.Ext.Allowed, Session: q.request.Ext.Session, Priority: q.request.Ext.Priority,
	}, newAskedMedia(&prompt), nil
}

type bestWorker struct {
	WorkerID      uint64 `json:"worker_id"`
	Rank          uint32 `json:"dp_rank"`
	OverlapBlocks int    `json:"overlap_blocks"`
	BlockSize     int    `json:"block_size"`
}

// bestWorkerAnswer is the JSON of POST /v1/router/best_worker.
type bestWorkerAnswer struct {
	bestWorker
	askedMedia
	Behind []nestedAnswer `json:"behind,omitempty"` // of the chosen worker if it is a router process
}

func (r *Router) findBestWorker(ctx context.Context, req *route.Request, depth int) (*bestWorkerAnswer, error) {
	ex, err := r.Explain(ctx, req)
	if err != nil {
		return nil, err
	}
	d := ex.Decision
	return &bestWorkerAnswer{
		bestWorker: bestWorker{uint64(d.Worker.ID), d.Worker.Rank, d.OverlapBlocks, d.BlockSize},
		Behind:     r.askRoutersAbout(ctx, engine.InspectBestWorker, req, []kv.WorkerID{d.Worker.ID}, depth),
	}, nil
}

func (b *bestWorkerAnswer) show(a askedMedia) { b.askedMedia = a }

type potentialLoad struct {
	WorkerID       uint64 `json:"worker_id"`
	Rank           uint32 `json:"dp_rank"`
	PrefillTokens  int    `json:"potential_prefill_tokens"`
	DecodeBlocks   int    `json:"potential_decode_blocks"`
	ActiveRequests int    `json:"active_requests"`
	// Behind holds the loads of the workers behind a router process.
	Behind      json.RawMessage `json:"behind,omitempty"`
	BehindError string          `json:"behind_error,omitempty"`
}

func (r *Router) potentialLoads(ctx context.Context, req *route.Request, depth int) ([]potentialLoad, error) {
	ex, err := r.Explain(ctx, req)
	if err != nil {
		return nil, err
	}
	loads := make([]potentialLoad, len(ex.Candidates))
	for i, c := range ex.Candidates {
		loads[i] = potentialLoad{
			WorkerID: uint64(c.Worker.ID), Rank: c.Worker.Rank,
			PrefillTokens: c.PrefillTokens, DecodeBlocks: c.DecodeBlocks, ActiveRequests: c.ActiveRequests,
		}
	}
	for _, a := range r.askRoutersAbout(ctx, engine.InspectLoads, req, candidateIDs(&ex), depth) {
		at := slices.IndexFunc(loads, func(l potentialLoad) bool { return l.WorkerID == a.Router })
		loads[at].Behind, loads[at].BehindError = a.Answer, a.Error
	}
	return loads, nil
}

// candidateIDs returns the workers that could be chosen.
func candidateIDs(ex *route.Explanation) []kv.WorkerID {
	ids := make([]kv.WorkerID, len(ex.Candidates))
	for i := range ex.Candidates {
		ids[i] = ex.Candidates[i].Worker.ID
	}
	return ids
}
