package frontend

import (
	"net/http"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/readiness"
)

func (f *Frontend) serveModels(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, append(openai.AppendModels(nil, f.catalog.current.Load().listFor(r)), '\n'))
}

// listFor returns the names that the request's key allows.
func (s *catalogSnapshot) listFor(r *http.Request) []openai.Model {
	all := s.listModels()
	if v := recordOf(r.Context()); v != nil && v.client != nil {
		all = slices.DeleteFunc(all, func(m openai.Model) bool { return !v.client.Key().AllowsModel(m.ID, m.Root) })
	}
	return all
}

func (f *Frontend) serveModel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s := f.catalog.current.Load()
	for _, m := range s.listFor(r) {
		if m.ID == id {
			writeJSON(w, http.StatusOK, append(openai.AppendModel(nil, m), '\n'))
			return
		}
	}
	if v := recordOf(r.Context()); v != nil && v.client != nil && v.client.Key().Models != nil {
		openai.WriteError(w, notForKey(id, v.client))
		return
	}
	openai.WriteError(w, s.unknownModel(id))
}

// WorkerCount returns the number of workers of the model that this frontend can send requests to; it is
// 0 while the model's tokenizer cannot be opened.
func (f *Frontend) WorkerCount(model string) int {
	m := f.catalog.current.Load().model(model)
	if m == nil || !m.isServable() {
		return 0
	}
	return len(m.Workers)
}

// serveReady reports whether requests can be served: 200 if at least one model can be, or the model in the
// query.
func (f *Frontend) serveReady(w http.ResponseWriter, r *http.Request) {
	body := f.readinessReport(r, f.catalog.current.Load())
	readiness.WriteJSON(w, body.StatusCode(), body)
}

func (f *Frontend) readinessReport(r *http.Request, s *catalogSnapshot) readiness.Report {
	report := readiness.NewReport(r, f.modelStates(s))
	if f.isLeaving.Load() {
		report.MarkDraining()
	}
	return report
}

// serveHealth is ready with the instances.
func (f *Frontend) serveHealth(w http.ResponseWriter, r *http.Request) {
	s := f.catalog.current.Load()
	body := readiness.NewHealthReport(f.readinessReport(r, s), f.instanceStates(s))
	if f.deps.Engines != nil {
		body.Engines = f.deps.Engines()
	}
	readiness.WriteJSON(w, body.StatusCode(), body)
}

// modelStates returns for each model whether it can be served: the router knows its workers, the
// catalog its tokenizer.
func (f *Frontend) modelStates(s *catalogSnapshot) []readiness.ModelStatus {
	models := make([]readiness.ModelStatus, 0, len(s.Models))
	for _, m := range s.Models {
		p := readiness.NewModelStatus(m.Card.Name, m.Parent, f.deps.Router.Availability(m.Card.Name))
		p.Aliases, p.Workers = s.AliasesOf(m), len(m.Workers)
		switch {
		case len(m.Workers) == 0:
			p.MarkUnhealthy(route.NoWorker)
		case !s.served[m].isServable():
			p.MarkUnhealthy("its tokenizer cannot be opened")
		}
		models = append(models, p)
	}
	return models
}

// instanceStates returns the registered instances. The catalog knows which ones it leaves out, the
// router the state of the others.
func (f *Frontend) instanceStates(s *catalogSnapshot) []readiness.InstanceStatus {
	known := map[kv.WorkerID]readiness.InstanceStatus{}
	for _, in := range f.deps.Router.Instances() {
		known[in.WorkerID] = in
	}
	all := make([]readiness.InstanceStatus, 0, len(s.Workers))
	for _, w := range s.Workers {
		p := known[w.ID]
		p.WorkerID, p.Model, p.Engine, p.Host, p.PID = w.ID, w.Card.Name, w.Card.Engine, w.Host, w.PID
		switch {
		case w.Problem != "":
			p.State, p.Reason = readiness.StateUnfit, "its model card cannot be read"
		case w.Unfit != "":
			p.State, p.Reason = readiness.StateUnfit, w.Unfit
		}
		all = append(all, p)
	}
	return all
}
