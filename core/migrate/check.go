package migrate

import (
	"errors"
	"fmt"

	"penstock/core/kv"
)

// Check reports the first violated invariant. It is for tests.
func (m *Machine) Check() error {
	seen := map[kv.WorkerID]bool{}
	for _, f := range m.failures {
		if seen[f.worker] {
			return fmt.Errorf("worker %d is noted twice", f.worker)
		}
		seen[f.worker] = true
	}
	for _, id := range m.excluded {
		if !seen[id] {
			return fmt.Errorf("worker %d is excluded and never failed", id)
		}
	}
	switch {
	case m.tried > m.cfg.Attempts:
		return fmt.Errorf("%d attempts, at most %d", m.tried, m.cfg.Attempts)
	case m.counted > max(m.cfg.Limit, 0)+1:
		return fmt.Errorf("%d failures, at most %d are made good", m.counted, m.cfg.Limit)
	case m.counted > m.tried || len(m.failures) > m.tried:
		return fmt.Errorf("%d failures counted and %d noted of %d", m.counted, len(m.failures), m.tried)
	case m.bound && m.tried == 0:
		return errors.New("bound by no attempt")
	case m.waited < 0:
		return fmt.Errorf("waited for %v", m.waited)
	}
	return nil
}
