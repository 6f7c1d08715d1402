package planner

import (
	"encoding/json"
	"fmt"

	"penstock/core/kv"
	"penstock/core/plan"
)

// FleetWorker is a worker as the server's table has it.
type FleetWorker struct {
	ID    kv.WorkerID
	Role  plan.WorkerRole
	State WorkerState
	// Running and Waiting are its sequences, CachedBlocks the blocks in its cache.
	Running, Waiting, CachedBlocks int
}

// WorkerState is what a worker does, as far as a planner needs it.
type WorkerState uint8

// The states of workers. A starting worker exists and does not serve.
const (
	WorkerReady WorkerState = iota
	WorkerStarting
	WorkerDraining
)

// maxWorkers bounds the workers of a table.
const maxWorkers = 1 << 16

// tableRow has the fields of a row of GET /v1/router/workers which a planner reads.
type tableRow struct {
	WorkerID uint64 `json:"worker_id"`
	Role     string `json:"role"`
	Model    string `json:"model"`
	State    string `json:"state"`
	Load     struct {
		ActiveRequests int `json:"active_requests"`
		Reported       *struct {
			Running int `json:"running"`
			Waiting int `json:"waiting"`
		} `json:"reported"`
	} `json:"load"`
	CachedBlocks int        `json:"cached_blocks"`
	Behind       []tableRow `json:"behind"`
	BehindError  string     `json:"behind_error"`
}

// parseWorkers reads the table of workers. It returns each worker of a model once, of all models if that is "", and in
// place of a router process the workers behind it.
func parseWorkers(text []byte, modelName string) ([]FleetWorker, error) {
	var table struct {
		Rows []tableRow `json:"rows"`
	}
	if err := json.Unmarshal(text, &table); err != nil {
		return nil, fmt.Errorf("it is no table of workers: %w", err)
	}
	t := workerTable{model: modelName, seen: map[kv.WorkerID]int{}}
	if err := t.addRows(table.Rows); err != nil {
		return nil, err
	}
	return t.workers, nil
}

// workerTable collects workers.
type workerTable struct {
	model   string
	seen    map[kv.WorkerID]int // index of a worker in workers
	workers []FleetWorker
}

func (t *workerTable) addRows(rows []tableRow) error {
	for i := range rows {
		r := &rows[i]
		if r.BehindError != "" {
			return fmt.Errorf("the workers behind router %d are not known: %.200s", r.WorkerID, r.BehindError)
		}
		if err := t.addRows(r.Behind); err != nil {
			return err
		}
		role, known := plan.ParseRole(r.Role)
		if !known || t.model != "" && r.Model != t.model {
			continue
		}
		if err := t.addWorker(r, role); err != nil {
			return err
		}
	}
	return nil
}

// addWorker adds a row. Ranks of a worker are one worker, which is as ready as its readiest rank.
func (t *workerTable) addWorker(r *tableRow, role plan.WorkerRole) error {
	id, state := kv.WorkerID(r.WorkerID), parseState(r.State)
	at, known := t.seen[id]
	if !known {
		if len(t.workers) == maxWorkers {
			return fmt.Errorf("it has more than %d workers", maxWorkers)
		}
		at = len(t.workers)
		t.seen[id] = at
		t.workers = append(t.workers, FleetWorker{ID: id, Role: role, State: state})
	}
	w := &t.workers[at]
	w.State = min(w.State, state)
	w.CachedBlocks += max(r.CachedBlocks, 0)
	if l := r.Load.Reported; l != nil {
		w.Running += max(l.Running, 0)
		w.Waiting += max(l.Waiting, 0)
	} else {
		w.Running += max(r.Load.ActiveRequests, 0)
	}
	return nil
}

// parseState maps the states of the table. A suspected worker is one which has not answered yet.
func parseState(state string) WorkerState {
	switch state {
	case "ready", "suspect", "unconfirmed":
		return WorkerReady
	case "draining":
		return WorkerDraining
	}
	return WorkerStarting
}

// countFleet counts the workers of each role, in the order of roles.
func countFleet(workers []FleetWorker, roles []plan.WorkerRole) []plan.RoleFleet {
	fleet := make([]plan.RoleFleet, len(roles))
	for i, role := range roles {
		for _, w := range workers {
			switch {
			case w.Role != role:
			case w.State == WorkerReady:
				fleet[i].Ready++
			case w.State == WorkerStarting:
				fleet[i].Starting++
			default:
				fleet[i].Draining++
			}
		}
	}
	return fleet
}

// countLoad adds what waits and runs in workers. Sequences of workers which drain do not count.
func countLoad(c *plan.IntervalCounts, workers []FleetWorker) {
	for _, w := range workers {
		if w.State != WorkerDraining {
			c.Waiting[w.Role] += float64(w.Waiting)
			c.Running[w.Role] += float64(w.Running)
		}
	}
}
