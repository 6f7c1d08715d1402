package router

import (
	"context"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

// maxAttempts bounds the attempts remembered of one request.
const maxAttempts = 32

// decisions remembers what was decided for the most recent requests. When it is
// full the request that came first is forgotten, and its memory used for the next.
type decisions struct {
	mu struct {
		sync.Mutex
		byID map[string]*remembered
		ring []*remembered // in order of arrival; oldest at next once full
		next int
	}
}

// remembered is what is known of a request.
type remembered struct {
	id, model string
	attempts  []attempted
}

// attempted is what is known of an attempt. Times are zero, and tokens unsaid, as long as nobody
// said them.
type attempted struct {
	number               uint32
	prompt               int
	decision             route.Decision
	predicted, reported  int
	at, prefilled, freed time.Time
	err                  string
}

const unsaid = -1

// decided is the JSON of GET /v1/router/decisions.
type decided struct {
	RequestID string           `json:"request_id"`
	Model     string           `json:"model"`
	Attempts  []decidedAttempt `json:"attempts"`
	// Behind is what the router processes decided that the request was sent to.
	Behind []behindAnswer `json:"behind,omitempty"`
}

type decidedAttempt struct {
	Attempt       uint32     `json:"attempt"`
	DecidedAt     time.Time  `json:"decided_at"`
	PromptTokens  int        `json:"prompt_tokens"`
	WorkerID      uint64     `json:"worker_id,omitempty"`
	Rank          uint32     `json:"dp_rank"`
	Mode          route.Mode `json:"mode,omitempty"`
	OverlapBlocks int        `json:"overlap_blocks"`
	BlockSize     int        `json:"block_size,omitempty"`
	Cost          float64    `json:"cost"`
	PrefilledAt   *time.Time `json:"prefilled_at,omitempty"`
	// Predicted and Reported are the tokens of the prompt that the worker was believed to
	// have cached, nil if there is none, and that it said it had; nil before it said so.
	Predicted *int       `json:"predicted_cached_tokens,omitempty"`
	Reported  *int       `json:"reported_cached_tokens,omitempty"`
	FreedAt   *time.Time `json:"freed_at,omitempty"`
	Error     string     `json:"error,omitempty"` // code: why no worker was chosen
}

func (d *decisions) init(size int) {
	d.mu.byID = make(map[string]*remembered)
	d.mu.ring = make([]*remembered, 0, size)
}

// routed notes one decision, or that there was none because of err.
func (d *decisions) routed(req *route.Request, dec *route.Decision, err error, at time.Time) {
	a := attempted{number: req.Attempt, at: at, prompt: len(req.Tokens), decision: *dec, predicted: unsaid, reported: unsaid}
	if err != nil {
		a.err = fault.Of(err).String()
	} else {
		a.predicted = dec.CachedTokens(len(req.Tokens))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.byID[req.ID]
	if e == nil {
		e = d.add(req.ID)
	}
	e.model = req.Model
	if last := len(e.attempts) - 1; last >= 0 && e.attempts[last].err != "" && e.attempts[last].number == req.Attempt {
		e.attempts[last] = a // asked again: it waits for a worker
		return
	}
	if len(e.attempts) == maxAttempts {
		e.attempts = slices.Delete(e.attempts, 0, 1)
	}
	e.attempts = append(e.attempts, a)
}

// add makes an entry in the place of the oldest. The caller holds mu.
func (d *decisions) add(id string) *remembered {
	var e *remembered
	if len(d.mu.ring) < cap(d.mu.ring) {
		e = &remembered{id: id}
		d.mu.ring = append(d.mu.ring, e)
	} else {
		e = d.mu.ring[d.mu.next]
		delete(d.mu.byID, e.id)
		clear(e.attempts)
		*e = remembered{id: id, attempts: e.attempts[:0]}
		d.mu.next = (d.mu.next + 1) % len(d.mu.ring)
	}
	d.mu.byID[id] = e
	return e
}

// prefilled notes when the prompt was computed, zero if that is not known, and how many tokens of it
// were cached, unsaid likewise.
func (d *decisions) prefilled(id string, attempt uint32, reported int, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.find(id, attempt)
	if a == nil {
		return
	}
	if a.prefilled.IsZero() {
		a.prefilled = at
	}
	if reported != unsaid {
		a.reported = reported
	}
}

func (d *decisions) freed(id string, attempt uint32, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.find(id, attempt); a != nil && a.freed.IsZero() && a.err == "" {
		a.freed = at
	}
}

// find returns the newest entry of an attempt, or nil. The caller holds mu.
func (d *decisions) find(id string, attempt uint32) *attempted {
	e := d.mu.byID[id]
	if e == nil {
		return nil
	}
	for i := len(e.attempts) - 1; i >= 0; i-- {
		if e.attempts[i].number == attempt {
			return &e.attempts[i]
		}
	}
	return nil
}

// get returns a copy of what is remembered of a request.
func (d *decisions) get(id string) (decided, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.byID[id]
	if e == nil {
		err := fault.New(fault.NotFound, "no decision is remembered for this request id; the last %d requests are", cap(d.mu.ring))
		err.Param = "request_id"
		return decided{}, err
	}
	out := decided{RequestID: e.id, Model: e.model}
	for i := range e.attempts {
		out.Attempts = append(out.Attempts, e.attempts[i].row())
	}
	return out, nil
}

// decided returns what is remembered of a request here, and at the router processes that it was sent
// to. One that another router sent there is found at theirs alone.
func (r *Router) decided(ctx context.Context, id string, depth int) (decided, error) {
	d, err := r.decisions.get(id)
	q := engine.Inspection{Call: engine.InspectDecisions, RequestID: id}
	if err == nil {
		var ids []kv.WorkerID
		for i := range d.Attempts {
			ids = append(ids, kv.WorkerID(d.Attempts[i].WorkerID))
		}
		d.Behind = r.askRouters(ctx, r.routersAmong(ids), q, depth)
		return d, nil
	}
	for _, a := range r.askRouters(ctx, r.routerProcesses(), q, depth) {
		if a.Error == "" {
			d.Behind = append(d.Behind, a)
		}
	}
	if len(d.Behind) == 0 {
		return d, err
	}
	d.RequestID, d.Attempts = id, []decidedAttempt{}
	return d, nil
}

// row returns the JSON of a.
func (a *attempted) row() decidedAttempt {
	d := &a.decision
	return decidedAttempt{
		Attempt: a.number, DecidedAt: a.at.UTC(), PromptTokens: a.prompt,
		WorkerID: uint64(d.Worker.ID), Rank: d.Worker.Rank, Mode: d.Mode,
		OverlapBlocks: d.OverlapBlocks, BlockSize: d.BlockSize, Cost: d.Cost,
		PrefilledAt: said(a.prefilled), Predicted: count(a.predicted), Reported: count(a.reported), FreedAt: said(a.freed), Error: a.err,
	}
}

func said(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return new(at.UTC())
}

func count(tokens int) *int {
	if tokens == unsaid {
		return nil
	}
	return &tokens
}
