package router

import (
	"fmt"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
)

// Availability says whether a model or a LoRA adapter can be served now, and if not why, under the same
// conditions as decisions. Probes, metrics and router processes use it.
func (r *Router) Availability(model string) route.Availability {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.availabilityLocked(r.now(), model)
}

// availabilityLocked is Availability with mu held.
func (r *Router) availabilityLocked(now kv.Mono, model string) route.Availability {
	p, adapter := r.poolLocked(model)
	if p == nil {
		return route.Availability{Reason: route.NoWorker}
	}
	a := p.router.Availability(adapter)
	if a.Ready > 0 {
		return a
	}
	for _, m := range r.mu.members { // only a router process knows the workers behind it
		if m.in.Card.Name == p.model && m.in.Card.Router && m.reportsState(now, engine.StateNotReady) {
			a.Reason += fmt.Sprintf("; %d: %s", m.worker.ID, m.notReadyReason())
			break
		}
	}
	return a
}

// Models returns for each model, followed by all LoRA adapters, whether it can be served, each group
// ascending by name. It includes models which have lost their last worker.
func (r *Router) Models() []readiness.ModelStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	models := make([]readiness.ModelStatus, 0, len(r.mu.snapshot.Models))
	for _, adapters := range []bool{false, true} {
		for _, m := range r.mu.snapshot.Models {
			if (m.Parent != "") == adapters {
				status := readiness.NewModelStatus(m.Card.Name, m.Parent, r.availabilityLocked(now, m.Card.Name))
				status.Aliases = r.mu.snapshot.AliasesOf(m)
				models = append(models, status)
			}
		}
	}
	return models
}

// Instances returns the registered workers in their routing state, ascending by id. A worker of several
// ranks has the state of the first rank that is not ready. Workers with unreadable registrations are at
// the end.
func (r *Router) Instances() []readiness.InstanceStatus {
	caches, _ := r.cache.workerCaches()
	trials := r.predictions.accuracyReports()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	var all []readiness.InstanceStatus
	for _, m := range r.mu.members {
		in := readiness.InstanceStatus{
			WorkerID: m.worker.ID, Model: m.in.Card.Name, Engine: m.in.Card.Engine, Role: roleOf(m.in.Card), Host: m.in.Host, PID: m.in.PID,
			Warnings: m.warningsLocked(now, trials[m.worker].warning),
		}
		in.State, in.Reason = r.conditionLocked(now, m, caches[m.worker])
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
	for _, w := range r.mu.snapshot.Workers {
		if w.Problem != "" {
			all = append(all, readiness.InstanceStatus{WorkerID: w.ID, Host: w.Host, PID: w.PID, State: readiness.StateError, Reason: w.Problem})
		}
	}
	return all
}
