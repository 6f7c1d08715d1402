package router

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/bounded"
	"penstock/internal/engine"
)

const (
	// maxDepth bounds how many nested router processes a question passes through.
	maxDepth = 3
	// inspectTimeout is how long a router process may take to answer, including the router processes
	// behind it.
	inspectTimeout = 3 * time.Second
	// maxInspections bounds the router processes asked at once for one answer.
	maxInspections = 16
)

// nestedAnswer is the answer of a router process behind this router to the same question: JSON of the
// same kind as this router's own answer.
type nestedAnswer struct {
	Router uint64          `json:"router"` // its worker_id
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"` // why there is no answer
}

// routerProcess is a member that is a router with workers of its own.
type routerProcess struct {
	id    kv.WorkerID
	model string
	addr  string
	// silent says that it does not answer.
	silent bool
}

// routerProcesses returns the members that are router processes, ascending by id.
func (r *Router) routerProcesses() []routerProcess {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []routerProcess
	for _, m := range r.mu.members {
		if m.in.Card.Router && m.worker.Rank == 0 {
			all = append(all, routerProcess{
				id: m.worker.ID, model: m.in.Card.Name, addr: m.in.Addr, silent: r.isQuarantinedLocked(m),
			})
		}
	}
	return all
}

// routersAmong returns the router processes whose id is in ids.
func (r *Router) routersAmong(ids []kv.WorkerID) []routerProcess {
	return slices.DeleteFunc(r.routerProcesses(), func(p routerProcess) bool { return !slices.Contains(ids, p.id) })
}

// askRouters puts a question to router processes, several at once, and returns their answers in the
// same order. At depth 0 or less it asks none.
func (r *Router) askRouters(ctx context.Context, routers []routerProcess, q engine.Inspection, depth int) []nestedAnswer {
	if depth <= 0 || r.planes.RPC == nil || len(routers) == 0 {
		return nil
	}
	q.Depth = depth - 1
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	answers := make([]nestedAnswer, len(routers))
	// Errors are part of the answers.
	_ = bounded.ForEach(ctx, len(routers), maxInspections, func(ctx context.Context, i int) error {
		p := &routers[i]
		answers[i].Router = uint64(p.id)
		own := q
		own.Model = p.model
		answer, err := r.askRouter(ctx, p, &own)
		if err != nil {
			answers[i].Error = err.Error()
			return nil
		}
		answers[i].Answer = answer
		return nil
	})
	for i := range answers {
		if answers[i].Router == 0 { // time ran out before it was asked
			answers[i] = nestedAnswer{Router: uint64(routers[i].id), Error: fmt.Sprintf("it was not asked within %v", inspectTimeout)}
		}
	}
	return answers
}

// askRouter puts a question to one router process.
func (r *Router) askRouter(ctx context.Context, p *routerProcess, q *engine.Inspection) (json.RawMessage, error) {
	if p.silent {
		return nil, fault.New(fault.Unavailable, "it does not answer")
	}
	body, err := engine.EncodeInspection(q)
	if err != nil {
		return nil, err
	}
	var answer []byte
	err = r.planes.RPC.Call(ctx, p.addr, engine.MethodInspect, body, func(frame []byte) (err error) {
		answer, err = engine.AppendInspectionFrame(answer, frame)
		return err
	})
	switch {
	case fault.CodeOf(err) == fault.Unimplemented:
		return nil, fault.New(fault.Unimplemented, "it does not tell what is behind it: run the same version everywhere")
	case ctx.Err() != nil:
		return nil, fault.New(fault.Deadline, "it did not answer within %v", inspectTimeout)
	case err != nil:
		return nil, err
	case !json.Valid(answer):
		return nil, fault.New(fault.Internal, "its answer is not whole")
	}
	return answer, nil
}

// addNestedWorkers adds to the rows of router processes the workers behind them.
func (r *Router) addNestedWorkers(ctx context.Context, table []workerRow, depth int) {
	var ids []kv.WorkerID
	for i := range table {
		if table[i].Role == roleRouter {
			ids = append(ids, kv.WorkerID(table[i].WorkerID))
		}
	}
	if len(ids) == 0 {
		return
	}
	for _, a := range r.askRouters(ctx, r.routersAmong(ids), engine.Inspection{Call: engine.InspectWorkers}, depth) {
		at := slices.IndexFunc(table, func(row workerRow) bool { return row.WorkerID == a.Router })
		var inner rowsAnswer[json.RawMessage]
		if a.Error == "" && json.Unmarshal(a.Answer, &inner) != nil {
			a.Error = "its answer is not what this version expects"
		}
		table[at].Behind, table[at].BehindError = inner.Rows, a.Error
	}
}
