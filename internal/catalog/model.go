package catalog

import (
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// Model is one served model, or one LoRA adapter of a model. It is immutable.
type Model struct {
	// Card describes the model: it is the card of its workers, except that MiscountedMedia are the kinds
	// of media for which any of them makes other tokens than are counted here. The card of an adapter is
	// its base model's under the adapter's name.
	Card      engine.Card
	Checksum  string    // of the workers' cards
	Parent    string    // the base model of an adapter; "" if the model is none
	FirstSeen time.Time // when the model was first registered, as far as this process knows
	// Workers are the workers that requests may go to, by id; none if all were removed.
	Workers []*Worker
	// Unfit are the workers that serve the name with another card, by id.
	Unfit []kv.WorkerID
	// PrefillWorkers and EncodeWorkers are the fitting workers of these roles, by id. No request goes to them.
	PrefillWorkers, EncodeWorkers []*Worker
}

// newModel returns the model of workers which take requests, at least one, that was served before as old, nil if it
// was not. It marks the workers that do not fit.
func newModel(old *Model, workers []*Worker, now time.Time) *Model {
	reference := workers[0]
	m := &Model{FirstSeen: now}
	if old != nil {
		m.FirstSeen = old.FirstSeen
		if at := slices.IndexFunc(workers, func(w *Worker) bool { return w.Checksum == old.Checksum }); at >= 0 {
			reference = workers[at]
		}
	}
	m.Card, m.Checksum = *reference.Card, reference.Checksum
	for _, w := range workers {
		if w.Checksum != m.Checksum {
			w.Unfit = w.Card.DescribeDifference(&m.Card)
			m.Unfit = append(m.Unfit, w.ID)
			continue
		}
		m.Workers = append(m.Workers, w)
	}
	m.Card.MiscountedMedia = m.UnionOf(func(c *engine.Card) []string { return c.MiscountedMedia })
	return m
}

// newAdapter returns the model of one of m's adapters.
func (m *Model) newAdapter(name string, now time.Time) *Model {
	a := &Model{Card: m.Card, Checksum: m.Checksum, Parent: m.Card.Name, FirstSeen: now, Unfit: m.Unfit, EncodeWorkers: m.EncodeWorkers}
	a.Card.Name, a.Card.Aliases, a.Card.Adapters = name, nil, nil
	for _, w := range m.Workers {
		if w.Card.ServesAdapter(name) {
			a.Workers = append(a.Workers, w)
		}
	}
	for _, w := range m.PrefillWorkers {
		if w.Card.ServesAdapter(name) {
			a.PrefillWorkers = append(a.PrefillWorkers, w)
		}
	}
	return a
}

// UnionOf returns what any of the model's workers lists, ascending.
func (m *Model) UnionOf(list func(*engine.Card) []string) []string {
	var all []string
	for _, w := range m.Workers {
		all = append(all, list(w.Card)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// HasWorker reports whether a worker's card satisfies match.
func (m *Model) HasWorker(match func(*engine.Card) bool) bool {
	return slices.ContainsFunc(m.Workers, func(w *Worker) bool { return match(w.Card) })
}

// MakesPrompts reports whether an engine of the model makes prompts.
func (m *Model) MakesPrompts() bool {
	return m.HasWorker(func(c *engine.Card) bool { return c.Preprocess })
}

// WorkersWhere returns the ids of the workers whose card satisfies match.
func (m *Model) WorkersWhere(match func(*engine.Card) bool) []kv.WorkerID {
	var ids []kv.WorkerID
	for _, w := range m.Workers {
		if match(w.Card) {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// NumericsOf returns the numerics of a worker of the model; "" if unknown.
func (m *Model) NumericsOf(id kv.WorkerID) string {
	for _, w := range m.Workers {
		if w.ID == id {
			return w.Card.Numerics
		}
	}
	return ""
}
