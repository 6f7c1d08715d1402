package stall

import (
	"errors"
	"fmt"
)

// Check reports the first violated invariant. It is for tests.
func (m *Detector) Check() error {
	switch gap, first := m.GapLimit(), m.FirstLimit(0); {
	case m.cfg.Limit == 0 && (gap < MinLimit || gap > MaxLimit):
		return fmt.Errorf("the limit between tokens is %v", gap)
	case first < minFirst:
		return fmt.Errorf("the limit before the first token is %v", first)
	case m.FirstLimit(1000) < first:
		return errors.New("a longer prompt has a shorter limit")
	}
	return errors.Join(m.gaps.checkCounts(), m.firsts.checkCounts())
}

func (h *histogram) checkCounts() error {
	var total uint32
	for _, n := range h.counts {
		total += n
	}
	if total != h.total || total >= halveAt || uint32(h.seen) < total && h.seen < 1<<20 && total < halveAt/2 {
		return errors.New("the counts of a histogram are not their sum")
	}
	return nil
}
