package router

import (
	"slices"

	"penstock/internal/engine"
)

// Refer tells by which card a model is served by the frontend beside this router:
// its checksum, see [engine.Card.Checksum]. Workers are measured by it as soon as
// one of them has it. The two see the same workers, but not at the same moments,
// and of two cards that came at once each might have taken another for the
// model's: then no worker would suit both.
func (r *Router) Refer(model, checksum string) {
	defer r.reportUnfit() // once mu is free
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.referred[model] == checksum {
		return
	}
	if len(r.mu.referred) >= 2*maxLost {
		r.forgetReferred()
	}
	r.mu.referred[model] = checksum
	r.rebuild()
}

// forgetReferred drops what was told of models that are not served. The caller
// holds mu.
func (r *Router) forgetReferred() {
	for model := range r.mu.referred { // each is its own affair
		if p := r.mu.names[model]; p == nil || p.model != model {
			delete(r.mu.referred, model)
		}
	}
}

// reference returns the card that the members of a model, at least one, are
// measured by: the one that the frontend serves by, else the one that the model
// had, as long as any member has it; so a newcomer never changes a model that is
// being served. Else it is that of the first. The caller holds mu.
func (r *Router) reference(old *pool, members []*member) (card engine.Card, checksum string) {
	had := func(checksum string) int {
		return slices.IndexFunc(members, func(m *member) bool { return m.checksum == checksum })
	}
	at := had(r.mu.referred[members[0].card.Name])
	if at < 0 && old != nil {
		at = had(old.checksum)
	}
	at = max(at, 0)
	return members[at].card, members[at].checksum
}

// reportUnfit logs, once each, the workers that are not those of their model.
func (r *Router) reportUnfit() {
	for _, m := range r.takeUnfit() {
		r.log.Warn("a worker gets no requests", "worker", uint64(m.worker.ID), "model", m.card.Name, "host", m.in.Host, "reason", m.unfit)
	}
}

// takeUnfit returns copies of the members whose unfitness was not logged yet.
func (r *Router) takeUnfit() []member {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []member
	for _, m := range r.mu.members {
		if m.unfit != m.saidUnfit {
			m.saidUnfit = m.unfit
			if m.unfit != "" {
				out = append(out, *m)
			}
		}
	}
	return out
}
