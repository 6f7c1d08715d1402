package frontend

import (
	"encoding/json"
	"net/http"
	"slices"

	"penstock/core/kv"
	"penstock/internal/edge/openai"
	"penstock/internal/engine"
)

func (f *Frontend) listModels(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, append(openai.AppendModels(nil, f.catalog.snap.Load().listFor(r)), '\n'))
}

// listFor returns the names that the request's key may ask for.
func (s *snapshot) listFor(r *http.Request) []openai.Model {
	all := s.list()
	if v := visitOf(r.Context()); v != nil && v.client != nil {
		all = slices.DeleteFunc(all, func(m openai.Model) bool { return !v.client.Key().Allows(m.ID, m.Root) })
	}
	return all
}

func (f *Frontend) oneModel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s := f.catalog.snap.Load()
	for _, m := range s.listFor(r) {
		if m.ID == id {
			writeJSON(w, http.StatusOK, append(openai.AppendModel(nil, m), '\n'))
			return
		}
	}
	if v := visitOf(r.Context()); v != nil && v.client != nil && v.client.Key().Models != nil {
		openai.WriteError(w, notForKey(id, v.client))
		return
	}
	openai.WriteError(w, s.unknown(id))
}

// Workers returns how many workers of the model this frontend can send requests
// to; 0 also while the model's tokenizer cannot be opened.
func (f *Frontend) Workers(model string) int {
	m := f.catalog.snap.Load().names[model]
	if m == nil || !m.servable() {
		return 0
	}
	return len(m.workers)
}

// live says that the process runs.
func live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, []byte("{\"status\":\"live\"}\n"))
}

// healthBody is the answer of GET /health.
type healthBody struct {
	Status    string           `json:"status"` // healthy, unhealthy, draining
	Models    []healthModel    `json:"models"`
	Instances []healthInstance `json:"instances"`
	// Engines are those that other programs run and this process follows.
	Engines any `json:"engines,omitempty"`
}

type healthModel struct {
	ID      string `json:"id"`
	Parent  string `json:"parent,omitempty"` // the model that it adapts
	Workers int    `json:"workers"`
	Reason  string `json:"reason,omitempty"` // why it cannot be served
}

type healthInstance struct {
	WorkerID kv.WorkerID `json:"worker_id"`
	Model    string      `json:"model"`
	Engine   string      `json:"engine"`
	Host     string      `json:"host"`
	PID      int         `json:"pid"`
	State    string      `json:"state"` // ready, unconfirmed, unfit, unreachable
	Reason   string      `json:"reason,omitempty"`
	// Warnings are what is wrong with its engine though it serves.
	Warnings []engine.Warning `json:"warnings,omitempty"`
}

// health says whether requests can be served: 200 if at least one model can.
func (f *Frontend) health(w http.ResponseWriter, _ *http.Request) {
	s := f.catalog.snap.Load()
	body := healthBody{Status: "unhealthy", Models: []healthModel{}, Instances: []healthInstance{}}
	status := http.StatusServiceUnavailable
	var warnings map[kv.WorkerID][]engine.Warning
	if f.warner != nil {
		warnings = f.warner.Warnings()
	}
	for _, m := range s.models {
		h := healthModel{ID: m.card.Name, Parent: m.parent, Workers: len(m.workers)}
		switch {
		case len(m.workers) == 0:
			h.Reason = "no worker"
		case !m.servable():
			h.Reason = "its tokenizer cannot be opened"
		case m.allUnreachable(warnings):
			h.Reason = "its engines do not answer"
		default:
			body.Status, status = "healthy", http.StatusOK
		}
		body.Models = append(body.Models, h)
	}
	if f.deps.Engines != nil {
		body.Engines = f.deps.Engines()
	}
	for _, in := range s.instances {
		h := in.health()
		h.Warnings = warnings[in.ID]
		if h.State == "ready" && unreachable(h.Warnings) {
			h.State = "unreachable"
		}
		body.Instances = append(body.Instances, h)
	}
	if f.leaving.Load() {
		body.Status, status = "draining", http.StatusServiceUnavailable
	}
	b, err := json.Marshal(body)
	if err != nil { // numbers and strings always marshal
		openai.WriteError(w, err)
		return
	}
	writeJSON(w, status, append(b, '\n'))
}

// unreachable reports whether a worker's engine does not answer.
func unreachable(warnings []engine.Warning) bool {
	return slices.ContainsFunc(warnings, func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable })
}

// allUnreachable reports whether no engine of the model answers: its workers run, and
// none could serve a request.
func (m *model) allUnreachable(warnings map[kv.WorkerID][]engine.Warning) bool {
	return !slices.ContainsFunc(m.workers, func(in instance) bool { return !unreachable(warnings[in.ID]) })
}

func (in *instance) health() healthInstance {
	h := healthInstance{
		WorkerID: in.ID,
		Model:    in.card.Name,
		Engine:   in.card.Engine,
		Host:     in.Host,
		PID:      in.PID,
		State:    "ready",
		Reason:   in.bad,
	}
	switch {
	case in.bad != "":
		h.State = "unfit"
	case in.Unconfirmed:
		h.State = "unconfirmed"
	}
	return h
}
