package route

import (
	"errors"
	"fmt"

	"penstock/core/activeseq"
)

// BusyThresholds are the loads above which a worker is busy: strictly above either of them. A busy worker
// takes no new request. A request which migrates, because its worker failed, goes to a busy worker if there
// is no other, since it was admitted once. The thresholds apply to the load which the router itself
// predicts, not to what workers report: the prediction is ahead of the next request, while reports lag a
// burst.
type BusyThresholds struct {
	// DecodeBlocks is the share of a worker's blocks, from 0 to 1, which may be active; 0 is no threshold.
	DecodeBlocks float64
	// PrefillTokens is how many prompt tokens may wait for prefill on a worker; 0 is no threshold.
	PrefillTokens int
}

// Validate reports every problem of b at once.
func (b BusyThresholds) Validate() error {
	var errs []error
	if !isInRange(b.DecodeBlocks, 1) {
		errs = append(errs, errors.New("route: the busy threshold of decode blocks must be a share between 0 and 1"))
	}
	if b.PrefillTokens < 0 {
		errs = append(errs, fmt.Errorf("route: the busy threshold of prefill tokens must not be negative, but is %d", b.PrefillTokens))
	}
	return errors.Join(errs...)
}

// areExceeded reports whether a worker with the given number of blocks, 0 if unknown, is busy under load l.
func (b BusyThresholds) areExceeded(l activeseq.Load, blocks int) bool {
	return b.exceedsDecodeBlocks(l, blocks) || b.PrefillTokens > 0 && l.PrefillTokens > b.PrefillTokens
}

func (b BusyThresholds) exceedsDecodeBlocks(l activeseq.Load, blocks int) bool {
	return b.DecodeBlocks > 0 && blocks > 0 && float64(l.Blocks) > b.DecodeBlocks*float64(blocks)
}

// describeExcess says why a worker with the given number of blocks is busy under load l.
func (b BusyThresholds) describeExcess(l activeseq.Load, blocks int) string {
	if b.exceedsDecodeBlocks(l, blocks) {
		return fmt.Sprintf("busy: %d of its %d blocks are active, more than the share of %g", l.Blocks, blocks, b.DecodeBlocks)
	}
	return fmt.Sprintf("busy: %d prompt tokens wait for prefill, more than %d", l.PrefillTokens, b.PrefillTokens)
}

// BusyThresholds returns the thresholds in force.
func (r *Router) BusyThresholds() BusyThresholds { return r.cfg.Busy }

// SetBusyThresholds changes the thresholds, from the next decision on.
func (r *Router) SetBusyThresholds(b BusyThresholds) error {
	if err := b.Validate(); err != nil {
		return err
	}
	r.cfg.Busy = b
	return nil
}
