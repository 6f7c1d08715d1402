package router

import (
	"fmt"
	"maps"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
)

// Availability says whether a model, or a LoRA adapter, can be served now, and if not why: by the
// conditions that decisions are made under. Probes, metrics and router processes go by it.
func (r *Router) Availability(model string) route.Availability {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.available(r.now(), model)
}

// available is Availability. The caller holds mu.
func (r *Router) available(now kv.Mono, model string) route.Availability {
	p := r.mu.names[model]
	if p == nil {
		return route.Availability{Reason: route.NoWorker}
	}
	adapter := ""
	if r.mu.adapters[model] {
		adapter = model
	}
	a := p.router.Availability(adapter)
	if a.Ready > 0 {
		return a
	}
	for _, m := range r.mu.members { // what is behind a router process is known to that one alone
		if m.card.Name == p.model && m.card.Router && m.says(now, engine.StateNotReady) {
			a.Reason += fmt.Sprintf("; %d: %s", m.worker.ID, m.notReady())
			break
		}
	}
	return a
}

// Models returns for each model, its LoRA adapters behind it, whether it can be served, ascending
// by name. Models whose last worker has left are among them.
func (r *Router) Models() []readiness.Model {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	models := make([]readiness.Model, 0, len(r.mu.pools))
	for _, p := range r.mu.pools {
		m := readiness.NewModel(p.model, "", r.available(now, p.model))
		m.Aliases = p.card.Aliases
		models = append(models, m)
	}
	for _, name := range slices.Sorted(maps.Keys(r.mu.adapters)) {
		models = append(models, readiness.NewModel(name, r.mu.names[name].model, r.available(now, name)))
	}
	return models
}

// Instances returns the registered workers as requests see them, ascending by id: of several ranks
// the first that is not ready. Those whose registration cannot be read are at the end.
func (r *Router) Instances() []readiness.Instance {
	caches, _ := r.cache.holdings()
	trials := r.predict.trials()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var all []readiness.Instance
	for _, m := range r.mu.members {
		in := readiness.Instance{
			WorkerID: m.worker.ID, Model: m.card.Name, Engine: m.card.Engine, Host: m.in.Host, PID: m.in.PID,
			Warnings: m.warnings(now, trials[m.worker].warning),
		}
		in.State, in.Reason = r.condition(now, m, caches[m.worker])
		last := len(all) - 1
		if last < 0 || all[last].WorkerID != in.WorkerID {
			all = append(all, in)
			continue
		}
		if all[last].State == engine.StateReady {
			all[last].State, all[last].Reason = in.State, in.Reason
		}
		all[last].Warnings = append(all[last].Warnings, in.Warnings...)
	}
	for _, b := range r.mu.broken {
		all = append(all, readiness.Instance{WorkerID: b.in.ID, Host: b.in.Host, PID: b.in.PID, State: readiness.StateError, Reason: b.problem})
	}
	return all
}
