package health

import (
	"fmt"

	"penstock/core/kv"
)

// Check reports the first violated invariant, as of now. It is for tests.
func (m *Monitor) Check(now kv.Mono) error {
	quarantined, waiting := 0, 0
	for id, e := range m.workers {
		if e.status.Quarantined {
			quarantined++
		}
		if e.index >= 0 {
			waiting++
		}
		switch {
		case e.ID != id:
			return fmt.Errorf("worker %d is kept as %d", e.ID, id)
		case e.index >= 0 == (e.outstanding != 0):
			return fmt.Errorf("worker %d must either wait for a ping or have one out", id)
		case e.index >= 0 && (e.index >= len(m.queue) || m.queue[e.index] != e):
			return fmt.Errorf("worker %d is not where it says in the queue", id)
		case e.status.Quarantined == (e.status.Cause == None):
			return fmt.Errorf("worker %d: quarantined %t because of %v", id, e.status.Quarantined, e.status.Cause)
		case e.status.Quarantined && (e.retry > m.cfg.MaxRetry || e.retry < m.cfg.MinRetry && e.retry != 0):
			return fmt.Errorf("worker %d is tried again after %v", id, e.retry)
		case e.status.Quarantined && e.outstanding == 0 && e.nextPing.Sub(now) > m.cfg.MaxRetry:
			return fmt.Errorf("worker %d in quarantine waits for %v", id, e.nextPing.Sub(now))
		case !e.status.Quarantined && e.outstanding == 0 && e.nextPing.Sub(now) > 2*max(m.cfg.IdleAfter, m.cfg.DoubtEvery):
			return fmt.Errorf("worker %d is not pinged for %v", id, e.nextPing.Sub(now))
		}
	}
	if quarantined != m.quarantined || waiting != len(m.queue) {
		return fmt.Errorf("%d in quarantine and %d waiting, counted %d and %d", quarantined, waiting, m.quarantined, len(m.queue))
	}
	return nil
}
