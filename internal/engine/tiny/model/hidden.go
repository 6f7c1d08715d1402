package model

// sumHiddenStates adds the last hidden states to the requested sums: one row after another, as float64, so
// that the result does not depend on where a sequence was split.
func (s *slab) sumHidden() {
	for i := range s.spans {
		sp := &s.spans[i]
		if sp.sum == nil {
			continue
		}
		for row := sp.first; row < sp.first+sp.count; row++ {
			for d, v := range part(s.normed, row, s.model.cfg.HiddenSize) {
				sp.sum[d] += float64(v)
			}
		}
	}
}
