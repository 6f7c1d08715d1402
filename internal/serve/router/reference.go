package router

import (
	"slices"

	"penstock/internal/engine"
)

// SetReferenceCard tells the router by which card the frontend in this process serves a model: by its
// checksum, see [engine.Card.Checksum]. It becomes the model's reference card as soon as a worker has
// it. The frontend and the router see the same workers, but not at the same moments; of two cards that
// arrive together each might choose another one, and then no worker would fit both.
func (r *Router) SetReferenceCard(model, checksum string) {
	defer r.reportUnfit() // after mu is released
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.referred[model] == checksum {
		return
	}
	if len(r.mu.referred) >= 2*maxLost {
		r.forgetReferredLocked()
	}
	r.mu.referred[model] = checksum
	r.rebuildPoolsLocked()
}

// forgetReferredLocked drops the checksums of models that are not served.
func (r *Router) forgetReferredLocked() {
	for model := range r.mu.referred { // the order does not matter
		if p := r.mu.names[model]; p == nil || p.model != model {
			delete(r.mu.referred, model)
		}
	}
}

// referenceCardLocked returns the card that the members of a model, at least one, are compared with:
// the frontend's card, else the model's previous card, if any member has it, else the first member's.
// So a new worker never changes a model that is being served.
func (r *Router) referenceCardLocked(old *modelPool, members []*member) (card engine.Card, checksum string) {
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

// reportUnfit logs each worker that does not match its model's reference card once.
func (r *Router) reportUnfit() {
	for _, m := range r.takeUnfit() {
		r.log.Warn("a worker gets no requests", "worker", uint64(m.worker.ID), "model", m.card.Name, "host", m.in.Host, "reason", m.unfit)
	}
}

// takeUnfit returns copies of the members whose mismatch is not logged yet.
func (r *Router) takeUnfit() []member {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []member
	for _, m := range r.mu.members {
		if m.unfit != m.loggedUnfit {
			m.loggedUnfit = m.unfit
			if m.unfit != "" {
				out = append(out, *m)
			}
		}
	}
	return out
}
