package frontend

import (
	"net/http"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/readiness"
)

func (f *Frontend) listModels(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, append(openai.AppendModels(nil, f.catalog.snap.Load().listFor(r)), '\n'))
}

// listFor returns the names that the request's key allows.
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

// WorkerCount returns the number of workers of the model that this frontend can send requests to; it is
// 0 while the model's tokenizer cannot be opened.
func (f *Frontend) Workers(model string) int {
	m := f.catalog.snap.Load().names[model]
	if m == nil || !m.servable() {
		return 0
	}
	return len(m.workers)
}

// serveReady reports whether requests can be served: 200 if at least one model can be, or the model in the
// query.
func (f *Frontend) ready(w http.ResponseWriter, r *http.Request) {
	body := f.readiness(r, f.catalog.snap.Load())
	readiness.Write(w, body.Code(), body)
}

func (f *Frontend) readiness(r *http.Request, s *snapshot) readiness.Report {
	report := readiness.NewReport(r, f.served(s))
	if f.leaving.Load() {
		report.Drain()
	}
	return report
}

// serveHealth is ready with the instances.
func (f *Frontend) health(w http.ResponseWriter, r *http.Request) {
	s := f.catalog.snap.Load()
	body := readiness.NewHealth(f.readiness(r, s), f.instances(s))
	if f.deps.Engines != nil {
		body.Engines = f.deps.Engines()
	}
	readiness.Write(w, body.Code(), body)
}

// modelStates returns for each model whether it can be served: the router knows its workers, the
// catalog its tokenizer.
func (f *Frontend) served(s *snapshot) []readiness.Model {
	models := make([]readiness.Model, 0, len(s.models))
	for _, m := range s.models {
		p := readiness.NewModel(m.card.Name, m.parent, f.deps.Router.Availability(m.card.Name))
		p.Aliases, p.Workers = m.card.Aliases, len(m.workers)
		switch {
		case len(m.workers) == 0:
			p.Refuse(route.NoWorker)
		case !m.servable():
			p.Refuse("its tokenizer cannot be opened")
		}
		models = append(models, p)
	}
	return models
}

// instanceStates returns the registered instances. The catalog knows which ones it leaves out, the
// router the state of the others.
func (f *Frontend) instances(s *snapshot) []readiness.Instance {
	known := map[kv.WorkerID]readiness.Instance{}
	for _, in := range f.deps.Router.Instances() {
		known[in.WorkerID] = in
	}
	all := make([]readiness.Instance, 0, len(s.instances))
	for i := range s.instances {
		in := &s.instances[i]
		p, ok := known[in.ID]
		if !ok {
			p.State, p.Reason = readiness.StateUnconfirmed, "the router has not heard of it yet"
		}
		p.WorkerID, p.Model, p.Engine, p.Host, p.PID = in.ID, in.card.Name, in.card.Engine, in.Host, in.PID
		if in.bad != "" {
			p.State, p.Reason = readiness.StateUnfit, in.bad
		}
		all = append(all, p)
	}
	return all
}
