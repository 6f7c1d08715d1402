package model

// sumHiddenStates adds the last hidden states to the requested sums: one row after another, as float64, so
// that the result does not depend on where a sequence was split.
func (s *arena) sumHiddenStates() {
	for i := range s.runs {
		sp := &s.runs[i]
		if sp.sum == nil {
			continue
		}
		for row := sp.first; row < sp.first+sp.count; row++ {
			for d, v := range rowOf(s.normed, row, s.model.cfg.HiddenSize) {
				sp.sum[d] += float64(v)
			}
		}
	}
}
