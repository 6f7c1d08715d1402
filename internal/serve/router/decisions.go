package router

import (
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/route"
)

// maxAttempts bounds the attempts remembered of one request.
const maxAttempts = 32

// decisions remembers what was decided for the most recent requests. When it is
// full the request that came first is forgotten.
type decisions struct {
	mu struct {
		sync.Mutex
		byID map[string]*decided
		ring []*decided // in order of arrival; oldest at next once full
		next int
	}
}

// decided is the JSON of GET /v1/router/decisions.
type decided struct {
	RequestID string           `json:"request_id"`
	Model     string           `json:"model"`
	Attempts  []decidedAttempt `json:"attempts"`
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
	d.mu.byID = make(map[string]*decided)
	d.mu.ring = make([]*decided, 0, size)
}

// routed notes one decision, or that there was none because of err.
func (d *decisions) routed(req *route.Request, dec *route.Decision, err error, at time.Time) {
	a := decidedAttempt{
		Attempt: req.Attempt, DecidedAt: at.UTC(), PromptTokens: len(req.Tokens),
		WorkerID: uint64(dec.Worker.ID), Rank: dec.Worker.Rank, Mode: dec.Mode,
		OverlapBlocks: dec.OverlapBlocks, BlockSize: dec.BlockSize, Cost: dec.Cost,
	}
	if err != nil {
		a.Error = fault.Of(err).String()
	} else {
		a.Predicted = new(dec.CachedTokens(len(req.Tokens)))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.byID[req.ID]
	if e == nil {
		e = d.add(req.ID)
	}
	e.Model = req.Model
	if last := len(e.Attempts) - 1; last >= 0 && e.Attempts[last].Error != "" && e.Attempts[last].Attempt == req.Attempt {
		e.Attempts[last] = a // asked again: it waits for a worker
		return
	}
	if len(e.Attempts) == maxAttempts {
		e.Attempts = slices.Delete(e.Attempts, 0, 1)
	}
	e.Attempts = append(e.Attempts, a)
}

// add makes an entry in the place of the oldest. The caller holds mu.
func (d *decisions) add(id string) *decided {
	e := &decided{RequestID: id}
	if len(d.mu.ring) < cap(d.mu.ring) {
		d.mu.ring = append(d.mu.ring, e)
	} else {
		delete(d.mu.byID, d.mu.ring[d.mu.next].RequestID)
		d.mu.ring[d.mu.next] = e
		d.mu.next = (d.mu.next + 1) % len(d.mu.ring)
	}
	d.mu.byID[id] = e
	return e
}

func (d *decisions) prefilled(id string, attempt uint32, at time.Time) {
	d.update(id, attempt, func(a *decidedAttempt) {
		if a.PrefilledAt == nil {
			a.PrefilledAt = new(at.UTC())
		}
	})
}

func (d *decisions) reported(id string, attempt uint32, reported int) {
	d.update(id, attempt, func(a *decidedAttempt) { a.Reported = &reported })
}

func (d *decisions) freed(id string, attempt uint32, at time.Time) {
	d.update(id, attempt, func(a *decidedAttempt) {
		if a.FreedAt == nil && a.Error == "" {
			a.FreedAt = new(at.UTC())
		}
	})
}

// update calls f, which must not wait, with the newest entry of an attempt.
func (d *decisions) update(id string, attempt uint32, f func(*decidedAttempt)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.byID[id]
	if e == nil {
		return
	}
	for i := len(e.Attempts) - 1; i >= 0; i-- {
		if e.Attempts[i].Attempt == attempt {
			f(&e.Attempts[i])
			return
		}
	}
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
	out := *e
	out.Attempts = slices.Clone(e.Attempts)
	return out, nil
}
