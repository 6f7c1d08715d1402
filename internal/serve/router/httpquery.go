package router

import (
	"context"
	"io"
	"net/http"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
)

// Prompter makes the prompt that a worker would be given. The composition root has
// the tokenizers.
type Prompter interface {
	// Prompt returns the prompt of a request to chat completions, or of one to
	// completions with one prompt. The error is a *fault.Error.
	Prompt(ctx context.Context, q *api.Request) (prep.Prompt, error)
}

// query reads a question about a prompt and puts it to Explain.
func (r *Router) query(w http.ResponseWriter, req *http.Request) (route.Explanation, asked, error) {
	q, shown, err := r.question(w, req)
	if err != nil {
		return route.Explanation{}, asked{}, err
	}
	ex, err := r.Explain(req.Context(), q)
	return ex, shown, err
}

// question reads a question about a prompt.
func (r *Router) question(w http.ResponseWriter, req *http.Request) (_ *route.Request, none asked, _ error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.cfg.MaxBodyBytes))
	if err != nil {
		return nil, none, explainJSON(err)
	}
	q, err := decodeQuery(body)
	if err != nil {
		return nil, none, err
	}
	if _, err := r.find(q.request.Model); err != nil {
		return nil, none, err
	}
	prompt := prep.Prompt{Tokens: q.tokens}
	if len(q.tokens) == 0 {
		if r.prompter == nil {
			return nil, none, fault.New(fault.Unimplemented, "this router has no tokenizer: give token_ids (penstock route --tokens), or ask a frontend")
		}
		if prompt, err = r.prompter.Prompt(req.Context(), q.request); err != nil {
			return nil, none, err
		}
	}
	pin, err := q.request.Ext.Pin()
	if err != nil {
		return nil, none, err
	}
	return &route.Request{
		Model: q.request.Model, Tokens: prompt.Tokens, Media: prompt.Media, Salt: kv.Salt{Namespace: q.request.CacheSalt},
		ExpectedOutput: q.request.Ext.ExpectedOutput, Override: q.override(), Pin: pin,
		Allowed: q.request.Ext.Allowed, Session: q.request.Ext.Session, Priority: q.request.Ext.Priority,
	}, newAsked(&prompt), nil
}

type bestWorker struct {
	WorkerID      uint64 `json:"worker_id"`
	Rank          uint32 `json:"dp_rank"`
	OverlapBlocks int    `json:"overlap_blocks"`
	BlockSize     int    `json:"block_size"`
}

func (r *Router) serveBestWorker(w http.ResponseWriter, req *http.Request) error {
	ex, shown, err := r.query(w, req)
	if err != nil {
		return err
	}
	d := ex.Decision
	return writeJSON(w, struct {
		bestWorker
		asked
	}{bestWorker{uint64(d.Worker.ID), d.Worker.Rank, d.OverlapBlocks, d.BlockSize}, shown})
}

type potentialLoad struct {
	WorkerID       uint64 `json:"worker_id"`
	Rank           uint32 `json:"dp_rank"`
	PrefillTokens  int    `json:"potential_prefill_tokens"`
	DecodeBlocks   int    `json:"potential_decode_blocks"`
	ActiveRequests int    `json:"active_requests"`
}

func (r *Router) servePotentialLoads(w http.ResponseWriter, req *http.Request) error {
	ex, _, err := r.query(w, req)
	if err != nil {
		return err
	}
	loads := []potentialLoad{}
	for _, c := range ex.Candidates {
		loads = append(loads, potentialLoad{uint64(c.Worker.ID), c.Worker.Rank, c.PrefillTokens, c.DecodeBlocks, c.ActiveRequests})
	}
	return writeJSON(w, loads)
}
