package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

// workerKinds are the kinds of instances which are workers, in the order in which they own an id that several
// of them have.
var workerKinds = [...]disco.Kind{disco.KindWorker, disco.KindPrefill, disco.KindEncode}

// Kinds returns the kinds of instances which are workers.
func Kinds() []disco.Kind { return slices.Clone(workerKinds[:]) }

// KindOf returns the kind under which a worker of a role registers.
func KindOf(role engine.Role) disco.Kind {
	switch role {
	case engine.RolePrefill:
		return disco.KindPrefill
	case engine.RoleEncode:
		return disco.KindEncode
	}
	return disco.KindWorker
}

// dropRepeatedIDs sorts workers by id and keeps one of each id: that of the first kind.
func (s *Snapshot) dropRepeatedIDs() {
	slices.SortStableFunc(s.Workers, func(a, b *Worker) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(slices.Index(workerKinds[:], a.Kind), slices.Index(workerKinds[:], b.Kind)))
	})
	s.Workers = slices.CompactFunc(s.Workers, func(w, kept *Worker) bool {
		if kept.ID == w.ID && kept.Kind != w.Kind {
			s.findings = append(s.findings, finding{worker: w.ID, host: w.Host, model: w.Card.Name, text: fmt.Sprintf(
				"its id is that of the %s worker on %s (pid %d) too: start one of them with another --worker-id", kept.Card.Role, kept.Host, kept.PID)})
		}
		return kept.ID == w.ID
	})
}

// addRoleWorkers adds the workers of the model's name which take no requests. It marks workers which do not fit:
// an encode worker must agree with all workers of the model, which are alike in what concerns it, and a
// prefill worker with one of them, since numerics divide the workers of a model.
func (m *Model) addRoleWorkers(workers []*Worker) {
	for _, w := range workers {
		fits := func(of *Worker) bool { return w.Card.DescribeDifference(of.Card) == "" }
		switch {
		case !slices.ContainsFunc(m.Workers, fits):
			w.Unfit = w.Card.DescribeDifference(m.Workers[0].Card)
		case w.Card.Role == engine.RolePrefill:
			m.PrefillWorkers = append(m.PrefillWorkers, w)
		default:
			m.EncodeWorkers = append(m.EncodeWorkers, w)
		}
	}
}
