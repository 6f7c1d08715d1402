// Package readiness has the answers of /health and /ready that processes with a router give: whether
// requests can be served, model by model, and if not why. /live is the same for every process.
package readiness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

// The values of Status.
const (
	Healthy   = "healthy"
	Unhealthy = "unhealthy"
	Draining  = "draining" // of a process that was told to stop
)

// Model says whether one model, or one LoRA adapter, can be served.
type Model struct {
	ID string `json:"id"`
	// Aliases are its other names, by which a probe may ask for it.
	Aliases []string `json:"-"`
	Parent  string   `json:"parent,omitempty"` // the model that it adapts
	Status  string   `json:"status"`           // Healthy or Unhealthy
	// Workers are those that are registered for it, in a frontend without those whose model card
	// differs. To Ready of them a request could be sent now.
	Workers int    `json:"workers"`
	Ready   int    `json:"ready_workers"`
	Reason  string `json:"reason,omitempty"` // why it cannot be served
}

// NewModel returns what a router's availability says of a model.
func NewModel(id, parent string, a route.Availability) Model {
	m := Model{ID: id, Parent: parent, Status: Healthy, Workers: a.Workers, Ready: a.Ready, Reason: a.Reason}
	if a.Ready == 0 {
		m.Status = Unhealthy
	}
	return m
}

// Refuse makes m unhealthy for a reason that a router does not know.
func (m *Model) Refuse(reason string) { m.Status, m.Reason = Unhealthy, reason }

// The states of instances that a router or a frontend finds, beside those that workers report
// ([engine.StateReady] and the like).
const (
	StateSuspect     = "suspect"     // a call failed: it gets what no other worker can take
	StateQuarantined = "quarantined" // it answers no ping
	StateUnconfirmed = "unconfirmed" // discovery, or the router, does not confirm it
	StateUnfit       = "unfit"       // its model card differs from that of the model
	StateError       = "error"       // what it says of itself cannot be used
)

// Instance is one registered worker, as requests see it.
type Instance struct {
	WorkerID kv.WorkerID `json:"worker_id"`
	Model    string      `json:"model"`
	Engine   string      `json:"engine"`
	Host     string      `json:"host"`
	PID      int         `json:"pid"`
	// State is one of the constants above or of engine, as docs/router-api.md says, and Reason says
	// more of it.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Warnings are what is wrong with its engine though it serves.
	Warnings []engine.Warning `json:"warnings,omitempty"`
}

// Report is the body of GET /ready.
type Report struct {
	Status string  `json:"status"`
	Reason string  `json:"reason,omitempty"` // why Status is not Healthy
	Models []Model `json:"models"`
}

// Health is the body of GET /health.
type Health struct {
	Report
	Instances []Instance `json:"instances"`
	// Engines are those that other programs run and this process follows.
	Engines any `json:"engines,omitempty"`
}

// NewReport returns the readiness of a process that serves these models, or of the one of them
// that the request r asks for as ?model=. It is healthy while any of them is.
func NewReport(r *http.Request, models []Model) Report {
	if name := r.URL.Query().Get("model"); name != "" {
		models = []Model{find(models, name)}
	}
	out := Report{Status: Unhealthy, Models: models}
	switch {
	case slices.ContainsFunc(models, func(m Model) bool { return m.Status == Healthy }):
		out.Status = Healthy
	case len(models) == 0:
		out.Models, out.Reason = []Model{}, "no worker is registered in its namespace and component"
	case len(models) == 1:
		out.Reason = fmt.Sprintf("%s cannot be served: %s", models[0].ID, models[0].Reason)
	default:
		out.Reason = fmt.Sprintf("none of %d models can be served", len(models))
	}
	return out
}

// Drain makes r that of a process that was told to stop, whatever it can still serve.
func (r *Report) Drain() { r.Status, r.Reason = Draining, "the process was told to stop" }

// find returns the model of a name; one without a worker if there is none.
func find(models []Model, name string) Model {
	at := slices.IndexFunc(models, func(m Model) bool { return m.ID == name || slices.Contains(m.Aliases, name) })
	if at < 0 {
		const most = 256 // bytes of a name that is none of ours
		return Model{ID: name[:min(len(name), most)], Status: Unhealthy, Reason: "no worker is registered for it"}
	}
	return models[at]
}

// NewHealth returns the health of a process: its readiness, and the instances of the models in it.
func NewHealth(ready Report, instances []Instance) Health {
	h := Health{Report: ready, Instances: []Instance{}}
	for _, in := range instances {
		if in.Model == "" || slices.ContainsFunc(ready.Models, func(m Model) bool { return in.Model == m.ID || in.Model == m.Parent }) {
			h.Instances = append(h.Instances, in)
		}
	}
	return h
}

// Code is the HTTP status that says what r does: 200 or 503.
func (r *Report) Code() int {
	if r.Status == Healthy {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// Write answers with a body of this package.
func Write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// Numbers and strings always encode, and a client that does not take it is gone.
	_ = json.NewEncoder(w).Encode(body)
}

// Live answers GET /live: the process runs.
func Live(w http.ResponseWriter, _ *http.Request) {
	Write(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"live"})
}
