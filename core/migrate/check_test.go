package migrate

import (
	"errors"
	"fmt"

	"penstock/core/kv"
)

// Check reports the first violated invariant. It is for tests.
func (m *Planner) Check() error {
	seen := map[kv.WorkerID]bool{}
	for _, f := range m.failed {
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
	case m.failedAttempts > m.cfg.MaxAttempts:
		return fmt.Errorf("%d attempts, at most %d", m.failedAttempts, m.cfg.MaxAttempts)
	case m.countedFailures > max(m.cfg.MaxFailures, 0)+1:
		return fmt.Errorf("%d failures, at most %d are made good", m.countedFailures, m.cfg.MaxFailures)
	case m.countedFailures > m.failedAttempts || len(m.failed) > m.failedAttempts:
		return fmt.Errorf("%d failures counted and %d noted of %d", m.countedFailures, len(m.failed), m.failedAttempts)
	case m.bound && m.failedAttempts == 0:
		return errors.New("bound by no attempt")
	case m.waited < 0:
		return fmt.Errorf("waited for %v", m.waited)
	}
	return nil
}
