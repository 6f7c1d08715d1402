// Package readiness implements /health and /ready of processes with a router: whether requests can be served,
// for each model, and if not why. /live is the same for every process.
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
	Draining  = "draining" // the process was told to stop
)

// ModelStatus says whether one model, or one LoRA adapter, can be served.
type ModelStatus struct {
	ID string `json:"id"`
	// Aliases are the other names which lead to it. A probe may use them.
	Aliases []string `json:"aliases,omitempty"`
	Parent  string   `json:"parent,omitempty"` // the model which an adapter adapts
	Status  string   `json:"status"`           // Healthy or Unhealthy
	// Workers is the number of workers registered for the model; a frontend leaves out those whose model card
	// differs. Ready is the number of them to which a request could be sent now.
	Workers int    `json:"workers"`
	Ready   int    `json:"ready_workers"`
	Reason  string `json:"reason,omitempty"` // why it cannot be served
}

// NewModelStatus returns the status of a model from a router's availability.
func NewModelStatus(id, parent string, a route.Availability) ModelStatus {
	m := ModelStatus{ID: id, Parent: parent, Status: Healthy, Workers: a.Workers, Ready: a.Ready, Reason: a.Reason}
	if a.Ready == 0 {
		m.Status = Unhealthy
	}
	return m
}

// MarkUnhealthy makes m unhealthy for a reason which a router does not know.
func (m *ModelStatus) MarkUnhealthy(reason string) { m.Status, m.Reason = Unhealthy, reason }

// The states of instances which a router or a frontend determines, in addition to the states which workers report
// ([engine.StateReady] and others).
const (
	StateSuspect     = "suspect"     // a call failed: it gets only requests which no other worker can serve
	StateQuarantined = "quarantined" // it does not answer pings
	StateUnconfirmed = "unconfirmed" // discovery, or the router, does not confirm it
	StateUnfit       = "unfit"       // its model card differs from that of the model
	StateError       = "error"       // its registration is invalid
)

// InstanceStatus is one registered worker, from the point of view of requests.
type InstanceStatus struct {
	WorkerID kv.WorkerID `json:"worker_id"`
	Model    string      `json:"model"`
	Engine   string      `json:"engine"`
	// Role is that of its card: aggregated, prefill, decode or encode; router of a router process.
	Role string `json:"role,omitempty"`
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// State is one of the constants above or of engine, as docs/router-api.md says. Reason explains it.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Warnings are problems of its engine which do not prevent serving.
	Warnings []engine.Warning `json:"warnings,omitempty"`
}

// Report is the body of GET /ready.
type Report struct {
	Status string        `json:"status"`
	Reason string        `json:"reason,omitempty"` // why Status is not Healthy
	Models []ModelStatus `json:"models"`
}

// HealthReport is the body of GET /health.
type HealthReport struct {
	Report
	Instances []InstanceStatus `json:"instances"`
	// Engines are the remote engines which this process follows.
	Engines any `json:"engines,omitempty"`
}

// NewReport returns the readiness of a process which serves these models, or of the model in the query
// parameter model of r. It is healthy if any of them is.
func NewReport(r *http.Request, models []ModelStatus) Report {
	if name := r.URL.Query().Get("model"); name != "" {
		models = []ModelStatus{findModel(models, name)}
	}
	out := Report{Status: Unhealthy, Models: models}
	switch {
	case slices.ContainsFunc(models, func(m ModelStatus) bool { return m.Status == Healthy }):
		out.Status = Healthy
	case len(models) == 0:
		out.Models, out.Reason = []ModelStatus{}, "no worker is registered in its namespace and component"
	case len(models) == 1:
		out.Reason = fmt.Sprintf("%s cannot be served: %s", models[0].ID, models[0].Reason)
	default:
		out.Reason = fmt.Sprintf("none of %d models can be served", len(models))
	}
	return out
}

// MarkDraining marks r as that of a process which was told to stop, regardless of what it can still serve.
func (r *Report) MarkDraining() { r.Status, r.Reason = Draining, "the process was told to stop" }

// findModel returns the model to which a name leads; if there is none, a model without workers. An alias leads to its
// model even if another one has that name: one without workers.
func findModel(models []ModelStatus, name string) ModelStatus {
	at := slices.IndexFunc(models, func(m ModelStatus) bool { return slices.Contains(m.Aliases, name) })
	if at < 0 {
		at = slices.IndexFunc(models, func(m ModelStatus) bool { return m.ID == name })
	}
	if at < 0 {
		const most = 256 // limit for an unknown name, in bytes
		return ModelStatus{ID: name[:min(len(name), most)], Status: Unhealthy, Reason: "no worker is registered for it"}
	}
	return models[at]
}

// NewHealthReport returns the health of a process: its readiness, and the instances of the models in it.
func NewHealthReport(ready Report, instances []InstanceStatus) HealthReport {
	h := HealthReport{Report: ready, Instances: []InstanceStatus{}}
	for _, in := range instances {
		if in.Model == "" || slices.ContainsFunc(ready.Models, func(m ModelStatus) bool { return in.Model == m.ID || in.Model == m.Parent }) {
			h.Instances = append(h.Instances, in)
		}
	}
	return h
}

// StatusCode returns the HTTP status for r: 200 or 503.
func (r *Report) StatusCode() int {
	if r.Status == Healthy {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// WriteJSON writes a body of this package as the response.
func WriteJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// Numbers and strings always encode; a write error means that the client has disconnected.
	_ = json.NewEncoder(w).Encode(body)
}

// ServeLive serves GET /live: the process runs.
func ServeLive(w http.ResponseWriter, _ *http.Request) {
	WriteJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"live"})
}
