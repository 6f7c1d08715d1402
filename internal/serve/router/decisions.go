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

// maxAttempts bounds the attempts kept of one request.
const maxAttempts = 32

// decisionLog keeps the decisions of the most recent requests. When it is full a new request replaces
// the oldest one and reuses its memory.
type decisionLog struct {
	mu struct {
		sync.Mutex
		byID map[string]*loggedRequest
		ring []*loggedRequest // in order of arrival; oldest at next once full
		next int
	}
}

// loggedRequest is the record of one request.
type loggedRequest struct {
	id, model string
	attempts  []loggedAttempt
}

// loggedAttempt is the record of an attempt. Times are zero and token counts tokensUnknown until they
// are reported.
type loggedAttempt struct {
	number               uint32
	prompt               int
	decision             route.Decision
	role                 string // of the worker
	predicted, reported  int
	at, prefilled, freed time.Time
	observed             time.Duration // to the first token; 0 until then
	err                  string
	split                *engine.SplitReport // nil until the worker has reported it
}

const tokensUnknown = -1

// decisionsAnswer is the JSON of GET /v1/router/decisions.
type decisionsAnswer struct {
	RequestID string            `json:"request_id"`
	Model     string            `json:"model"`
	Attempts  []decisionAttempt `json:"attempts"`
	// Behind holds the decisions of the router processes which the request was sent to.
	Behind []nestedAnswer `json:"behind,omitempty"`
}

type decisionAttempt struct {
	Attempt       uint32     `json:"attempt"`
	DecidedAt     time.Time  `json:"decided_at"`
	PromptTokens  int        `json:"prompt_tokens"`
	WorkerID      uint64     `json:"worker_id,omitempty"`
	Rank          uint32     `json:"dp_rank"`
	Role          string     `json:"role,omitempty"` // see workerRow
	Mode          route.Mode `json:"mode,omitempty"`
	OverlapBlocks int        `json:"overlap_blocks"`
	BlockSize     int        `json:"block_size,omitempty"`
	Cost          float64    `json:"cost"`
	// PredictedTTFT is the predicted time from the decision to the first token, null if there was no prediction;
	// ObservedTTFT is the observed one, null until then.
	PredictedTTFT *float64   `json:"predicted_ttft_ms,omitempty"`
	ObservedTTFT  *float64   `json:"observed_ttft_ms,omitempty"`
	PrefilledAt   *time.Time `json:"prefilled_at,omitempty"`
	// Predicted is the number of prompt tokens predicted to be cached on the worker, nil if there was
	// no prediction. Reported is the number that the worker reported; nil until then.
	Predicted *int       `json:"predicted_cached_tokens,omitempty"`
	Reported  *int       `json:"reported_cached_tokens,omitempty"`
	FreedAt   *time.Time `json:"freed_at,omitempty"`
	Error     string     `json:"error,omitempty"` // code: why no worker was chosen
	// Prefill says where the prompt was computed; nil unless a decode worker has reported it.
	Prefill *prefillRow `json:"prefill,omitempty"`
}

func (d *decisionLog) initialize(size int) {
	d.mu.byID = make(map[string]*loggedRequest)
	d.mu.ring = make([]*loggedRequest, 0, size)
}

// recordDecision records one decision for a worker of a role, or with err that there was none.
func (d *decisionLog) recordDecision(req *route.Request, dec *route.Decision, role string, err error, at time.Time) {
	a := loggedAttempt{number: req.Attempt, at: at, prompt: len(req.Tokens), decision: *dec, role: role, predicted: tokensUnknown, reported: tokensUnknown}
	if err != nil {
		a.err = fault.CodeOf(err).String()
	} else {
		a.predicted = dec.CachedTokens(len(req.Tokens))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.byID[req.ID]
	if e == nil {
		e = d.addRequestLocked(req.ID)
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

// addRequestLocked adds a record in the place of the oldest one.
func (d *decisionLog) addRequestLocked(id string) *loggedRequest {
	var e *loggedRequest
	if len(d.mu.ring) < cap(d.mu.ring) {
		e = &loggedRequest{id: id}
		d.mu.ring = append(d.mu.ring, e)
	} else {
		e = d.mu.ring[d.mu.next]
		delete(d.mu.byID, e.id)
		clear(e.attempts)
		*e = loggedRequest{id: id, attempts: e.attempts[:0]}
		d.mu.next = (d.mu.next + 1) % len(d.mu.ring)
	}
	d.mu.byID[id] = e
	return e
}

// recordPrefill records when the prompt was computed, zero if unknown, and how many of its tokens were
// cached, tokensUnknown if unknown.
func (d *decisionLog) recordPrefill(id string, attempt uint32, reported int, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.findAttemptLocked(id, attempt)
	if a == nil {
		return
	}
	if a.prefilled.IsZero() {
		a.prefilled = at
	}
	if reported != tokensUnknown {
		a.reported = reported
	}
}

// recordTTFT records the time to an attempt's first token.
func (d *decisionLog) recordTTFT(id string, attempt uint32, observed time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.findAttemptLocked(id, attempt); a != nil {
		a.observed = observed
	}
}

// recordSplit records where the prompt was computed.
func (d *decisionLog) recordSplit(id string, attempt uint32, s *engine.SplitReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.findAttemptLocked(id, attempt); a != nil {
		a.split = s
	}
}

func (d *decisionLog) recordFree(id string, attempt uint32, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.findAttemptLocked(id, attempt); a != nil && a.freed.IsZero() && a.err == "" {
		a.freed = at
	}
}

// findAttemptLocked returns the newest record of an attempt, or nil.
func (d *decisionLog) findAttemptLocked(id string, attempt uint32) *loggedAttempt {
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

// findRequest returns a copy of the record of a request.
func (d *decisionLog) findRequest(id string) (decisionsAnswer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.byID[id]
	if e == nil {
		err := fault.New(fault.NotFound, "no decision is remembered for this request id; the last %d requests are", cap(d.mu.ring))
		err.Param = "request_id"
		return decisionsAnswer{}, err
	}
	out := decisionsAnswer{RequestID: e.id, Model: e.model}
	for i := range e.attempts {
		out.Attempts = append(out.Attempts, e.attempts[i].jsonRow())
	}
	return out, nil
}

// collectDecisions returns the records of a request, here and at the router processes that it was sent
// to. A request which another router sent there is found only there.
func (r *Router) collectDecisions(ctx context.Context, id string, depth int) (decisionsAnswer, error) {
	d, err := r.decisions.findRequest(id)
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
	d.RequestID, d.Attempts = id, []decisionAttempt{}
	return d, nil
}

// jsonRow returns the JSON of a.
func (a *loggedAttempt) jsonRow() decisionAttempt {
	d := &a.decision
	row := decisionAttempt{
		Attempt: a.number, DecidedAt: a.at.UTC(), PromptTokens: a.prompt,
		WorkerID: uint64(d.Worker.ID), Rank: d.Worker.Rank, Role: a.role, Mode: d.Mode,
		OverlapBlocks: d.OverlapBlocks, BlockSize: d.BlockSize, Cost: d.Cost,
		PrefilledAt: timeOrNil(a.prefilled), Predicted: tokensOrNil(a.predicted), Reported: tokensOrNil(a.reported), FreedAt: timeOrNil(a.freed), Error: a.err,
		Prefill: newPrefillRow(a.split),
	}
	if d.TTFT > 0 {
		row.PredictedTTFT = new(roundMs(toMs(d.TTFT)))
	}
	if a.observed > 0 {
		row.ObservedTTFT = new(roundMs(toMs(a.observed)))
	}
	return row
}

func timeOrNil(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return new(at.UTC())
}

func tokensOrNil(tokens int) *int {
	if tokens == tokensUnknown {
		return nil
	}
	return &tokens
}
