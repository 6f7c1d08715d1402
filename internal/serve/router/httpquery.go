package router

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/prep"
)

// Prompter turns what a client sent into the token ids that a model would see.
// The composition root has the tokenizers.
type Prompter interface {
	Tokens(ctx context.Context, model string, p Prompt) ([]kv.Token, error)
}

// Prompt is a text or, if Messages is not empty, a conversation.
type Prompt struct {
	Text     string
	Messages []prep.Message
}

// query is the body of the calls that ask about a prompt.
type query struct {
	Model     string         `json:"model"`
	TokenIDs  []kv.Token     `json:"token_ids"`
	Prompt    *string        `json:"prompt"`
	Messages  []message      `json:"messages"`
	Override  route.Override `json:"router_config_override"`
	CacheSalt string         `json:"cache_salt"`
}

type message struct {
	Role    string  `json:"role"`
	Name    string  `json:"name"`
	Content content `json:"content"`
}

// content is a string or a list of text parts, which make lines: the frontend
// reads them the same way, and the answer here must be about the same prompt.
type content string

func (c *content) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*c = content(s)
		return nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(b, &parts) != nil {
		return fault.Param("messages", "the content of a message must be a string or a list of text parts")
	}
	var text strings.Builder
	for i, p := range parts {
		if p.Type != "text" {
			return fault.Param("messages", "content parts of type %.40q are not supported here", p.Type)
		}
		if i > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(p.Text)
	}
	*c = content(text.String())
	return nil
}

// query reads a query and puts it to Explain.
func (r *Router) query(w http.ResponseWriter, req *http.Request) (route.Explanation, error) {
	var q query
	if err := r.readJSON(w, req, &q); err != nil {
		return route.Explanation{}, err
	}
	tokens, err := r.tokens(req.Context(), &q)
	if err != nil {
		return route.Explanation{}, err
	}
	return r.Explain(req.Context(), &route.Request{
		Model: q.Model, Tokens: tokens, Override: q.Override, Salt: kv.Salt{Namespace: q.CacheSalt},
	})
}

// tokens returns the prompt of a query, which gives it in one of three ways.
func (r *Router) tokens(ctx context.Context, q *query) ([]kv.Token, error) {
	ways := 0
	for _, given := range []bool{len(q.TokenIDs) > 0, q.Prompt != nil, len(q.Messages) > 0} {
		if given {
			ways++
		}
	}
	switch {
	case q.Model == "":
		return nil, fault.Param("model", "model is missing")
	case ways != 1:
		return nil, fault.Param("token_ids", "give the prompt as one of token_ids, prompt and messages, and not empty")
	case len(q.TokenIDs) > 0:
		return q.TokenIDs, nil
	case r.prompter == nil:
		return nil, fault.New(fault.Unimplemented, "this router has no tokenizer: give token_ids")
	}
	if _, err := r.find(q.Model); err != nil {
		return nil, err
	}
	var p Prompt
	if q.Prompt != nil {
		p.Text = *q.Prompt
	}
	for _, m := range q.Messages {
		p.Messages = append(p.Messages, prep.Message{Role: m.Role, Name: m.Name, Content: string(m.Content)})
	}
	return r.prompter.Tokens(ctx, q.Model, p)
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
	if err != nil && fault.Of(err) != fault.Unavailable {
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
