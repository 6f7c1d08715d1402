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
func (r *Router) query(w http.ResponseWriter, req *http.Request) (route.Explanation, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.cfg.MaxBodyBytes))
	if err != nil {
		return route.Explanation{}, explainJSON(err)
	}
	q, err := decodeQuery(body)
	if err != nil {
		return route.Explanation{}, err
	}
	if _, err := r.find(q.request.Model); err != nil {
		return route.Explanation{}, err
	}
	prompt := prep.Prompt{Tokens: q.tokens}
	if len(q.tokens) == 0 {
		if r.prompter == nil {
			return route.Explanation{}, fault.New(fault.Unimplemented, "this router has no tokenizer: give token_ids")
		}
		if prompt, err = r.prompter.Prompt(req.Context(), q.request); err != nil {
			return route.Explanation{}, err
		}
	}
	return r.Explain(req.Context(), &route.Request{
		Model: q.request.Model, Tokens: prompt.Tokens, Media: prompt.Media, Salt: kv.Salt{Namespace: q.request.CacheSalt},
		ExpectedOutput: q.request.Ext.ExpectedOutput, Override: q.override(), Pin: kv.Worker{ID: q.request.Ext.Worker},
		Allowed: q.request.Ext.Allowed, Session: q.request.Ext.Session, Priority: q.request.Ext.Priority,
	})
}

type bestWorker struct {
	WorkerID      uint64 `json:"worker_id"`
	Rank          uint32 `json:"dp_rank"`
	OverlapBlocks int    `json:"overlap_blocks"`
	BlockSize     int    `json:"block_size"`
}

func (r *Router) serveBestWorker(w http.ResponseWriter, req *http.Request) error {
	ex, err := r.query(w, req)
	if err != nil {
		return err
	}
	d := ex.Decision
	return writeJSON(w, bestWorker{uint64(d.Worker.ID), d.Worker.Rank, d.OverlapBlocks, d.BlockSize})
}

type potentialLoad struct {
	WorkerID       uint64 `json:"worker_id"`
	Rank           uint32 `json:"dp_rank"`
	PrefillTokens  int    `json:"potential_prefill_tokens"`
	DecodeBlocks   int    `json:"potential_decode_blocks"`
	ActiveRequests int    `json:"active_requests"`
}

func (r *Router) servePotentialLoads(w http.ResponseWriter, req *http.Request) error {
	ex, err := r.query(w, req)
	if err != nil {
		return err
	}
	loads := []potentialLoad{}
	for _, c := range ex.Candidates {
		loads = append(loads, potentialLoad{uint64(c.Worker.ID), c.Worker.Rank, c.PrefillTokens, c.DecodeBlocks, c.ActiveRequests})
	}
	return writeJSON(w, loads)
}

type explained struct {
	Decision      *explainedDecision   `json:"decision"` // null if nobody can be chosen
	Reason        string               `json:"reason,omitempty"`
	OverlapWeight float64              `json:"overlap_score_weight"`
	Temperature   float64              `json:"router_temperature"`
	PromptTokens  int                  `json:"prompt_tokens"`
	PromptBlocks  int                  `json:"prompt_blocks"`
	Candidates    []explainedCandidate `json:"candidates"`
	Excluded      []explainedExclusion `json:"excluded"`
}

type explainedDecision struct {
	bestWorker
	Mode route.Mode `json:"mode"`
	Cost float64    `json:"cost"`
}

type explainedCandidate struct {
	WorkerID       uint64       `json:"worker_id"`
	Rank           uint32       `json:"dp_rank"`
	Overlap        tieredBlocks `json:"overlap_blocks"`
	PrefillTokens  int          `json:"prefill_tokens"`
	PrefillBlocks  float64      `json:"prefill_blocks"`
	DecodeBlocks   int          `json:"decode_blocks"`
	ActiveRequests int          `json:"active_requests"`
	Affinity       float64      `json:"affinity"`
	Cost           float64      `json:"cost"`
	Probability    float64      `json:"probability"`
}

type tieredBlocks struct {
	Device int `json:"device"`
	Host   int `json:"host"`
	Disk   int `json:"disk"`
	Pool   int `json:"pool"`
}

type explainedExclusion struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
	Reason   string `json:"reason"`
}

// serveExplain answers even when no worker can be chosen: then the reasons are
// what was asked for.
func (r *Router) serveExplain(w http.ResponseWriter, req *http.Request) error {
	ex, err := r.query(w, req)
	if code := fault.Of(err); err != nil && code != fault.Unavailable && code != fault.Overloaded && code != fault.Ineligible {
		return err
	}
	out := explained{
		OverlapWeight: ex.OverlapWeight, Temperature: ex.Temperature,
		PromptTokens: ex.PromptTokens, PromptBlocks: ex.PromptBlocks,
		Candidates: []explainedCandidate{}, Excluded: []explainedExclusion{},
	}
	if err != nil {
		out.Reason = err.Error()
	} else {
		d := ex.Decision
		out.Decision = &explainedDecision{bestWorker{uint64(d.Worker.ID), d.Worker.Rank, d.OverlapBlocks, d.BlockSize}, d.Mode, d.Cost}
	}
	for _, c := range ex.Candidates {
		out.Candidates = append(out.Candidates, explainedCandidate{
			uint64(c.Worker.ID), c.Worker.Rank,
			tieredBlocks{c.Overlap[kv.TierDevice], c.Overlap[kv.TierHost], c.Overlap[kv.TierDisk], c.Overlap[kv.TierPool]},
			c.PrefillTokens, c.PrefillBlocks, c.DecodeBlocks, c.ActiveRequests, c.Affinity, c.Cost, c.Probability,
		})
	}
	for _, e := range ex.Excluded {
		out.Excluded = append(out.Excluded, explainedExclusion{uint64(e.Worker.ID), e.Worker.Rank, e.Reason})
	}
	return writeJSON(w, out)
}
