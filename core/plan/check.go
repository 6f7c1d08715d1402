package plan

import "fmt"

// Check reports the first violated invariant. It is for tests.
func (p *Planner) Check() error {
	for i := range p.roles {
		r := &p.roles[i]
		awaited := 0
		for _, s := range r.pending {
			if s.n < 1 {
				return fmt.Errorf("%v: an order of %d workers is pending", r.cfg.Role, s.n)
			}
			awaited += s.n
		}
		switch {
		case r.order < 0:
			return fmt.Errorf("%v: %d workers are ordered", r.cfg.Role, r.order)
		case p.started && awaited > max(r.order-r.fleet.Ready, 0):
			return fmt.Errorf("%v: %d workers are awaited, and %d of %d are ready", r.cfg.Role, awaited, r.fleet.Ready, r.order)
		case r.extra < 0 || r.size.workers < 0:
			return fmt.Errorf("%v: %d and %d workers are needed", r.cfg.Role, r.size.workers, r.extra)
		}
	}
	return nil
}
