package disagg

import (
	"errors"
	"fmt"
)

// invariants collects what does not hold.
type invariants struct{ errs []error }

func (c *invariants) must(ok bool, format string, args ...any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("disagg: check: "+format, args...))
	}
}

// checkAttempt checks that a machine is at one of its own attempts.
func (c *invariants) checkAttempt(ref AttemptRef, first uint32, limit, failed int) {
	used := int(ref.Attempt-first) + 1
	c.must(used >= 1 && used <= limit, "attempt %d of %d", used, limit)
	c.must(failed <= used, "%d workers failed in %d attempts", failed, used)
}

// Check returns an error if an invariant does not hold: a reservation is held in the states which need one and in no
// other, a prefill worker is admitted if and only if a transfer is open, blocks are to be moved, and no wait goes beyond the
// budget. It is for tests.
func (h *Handoff) Check() error {
	c := &invariants{}
	waits := h.state == Queued || h.state == Prefilling
	c.must(h.reserved == (waits || h.state == Reserving), "a reservation in the state %v: %t", h.state, h.reserved)
	c.must(!waits || h.held < h.end && h.held%h.blockSize == 0 && h.end < h.tokens && h.tokens-h.end <= h.blockSize,
		"tokens %d to %d of %d move, with blocks of %d", h.held, h.end, h.tokens, h.blockSize)
	c.must(h.state != Queued || h.deadline <= h.queueEnd && (h.deadline == h.queueEnd || h.isAddressed()),
		"the wait for a worker ends at %d, the wait of the attempt at %d", h.deadline, h.queueEnd)
	c.must(!waits || h.deadline <= h.budgetEnd, "the state %v ends at %d, the budget at %d", h.state, h.deadline, h.budgetEnd)
	c.must(h.state != Prefilling || h.puller != Incarnation{}, "no prefill worker is admitted")
	c.must(h.state != Queued || h.puller == Incarnation{}, "a prefill worker is admitted to a job in the queue")
	c.checkAttempt(h.ref, h.first, h.cfg.MaxAttempts, len(h.failed))
	return errors.Join(c.errs...)
}

// Check returns an error if an invariant does not hold: no wait goes beyond the budget. It is for tests.
func (j *PrefillJob) Check() error {
	c := &invariants{}
	c.must(j.state <= JobOver, "state %d", j.state)
	c.must(j.state == JobOver || j.deadline <= j.budgetEnd, "the state %v ends at %d, the budget at %d", j.state, j.deadline, j.budgetEnd)
	return errors.Join(c.errs...)
}

// Check returns an error if an invariant does not hold: a handoff is held in the state which uses it and in no other, and
// no prefill leg goes beyond the budget. It is for tests.
func (l *Legs) Check() error {
	c := &invariants{}
	c.must(!l.handoff || l.state == DecodeLeg, "a handoff is held in the state %v", l.state)
	c.must(l.state != DecodeLeg || l.handoff == (l.cfg.Order == PrefillFirst), "a handoff is held: %t", l.handoff)
	c.must(l.state != BothLegs || l.cfg.Order == BothAtOnce, "both legs run")
	c.must(l.state != PrefillLeg && l.state != BothLegs || l.deadline <= l.budgetEnd, "the prefill leg ends at %d, the budget at %d", l.deadline, l.budgetEnd)
	c.must(l.state != BothLegs && l.state != DecodeLeg || l.prefiller != Incarnation{}, "a decode leg without a prefill worker")
	c.checkAttempt(l.ref, l.first, l.cfg.MaxAttempts, len(l.failed))
	return errors.Join(c.errs...)
}
