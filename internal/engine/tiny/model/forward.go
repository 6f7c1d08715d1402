package model

import "fmt"

// Forward computes one batch: it writes the keys and values of all tokens into their blocks, and the
// requested logits. The order of work does not affect any of them. It returns an error, and has written
// nothing, if a work does not fit the model or the cache; every other input has a result. The goroutines that
// it starts have ended when it returns. A Cache is for one Forward at a time; once warm, Forward allocates
// nothing.
func (m *Model) Forward(c *Cache, work []Work) error {
	if c.model != m {
		return fmt.Errorf("model forward: the cache belongs to another model")
	}
	for i := range work {
		if err := c.checkWork(&work[i]); err != nil {
			return fmt.Errorf("model forward work %d: %w", i, err)
		}
	}
	s := c.arena
	s.resetRows() // a panic may have left rows behind
	for i := range work {
		for at := 0; at < len(work[i].Tokens); {
			at += s.takeTokens(&work[i], at)
			if s.isFull() {
				s.runLayers()
			}
		}
	}
	s.runLayers()
	return nil
}

// runLayers takes the rows of the arena through the layers and empties it. Keys and values of a layer are
// complete before its attention reads them; a later pass finds this one's in the cache, as it finds an
// earlier call's.
func (s *arena) runLayers() {
	if len(s.rows) == 0 {
		return
	}
	s.cutTiles()
	s.layer = 0
	s.forRows(s.jobs.enter)
	for i := range s.model.layers {
		l := &s.model.layers[i]
		s.layer = i
		s.multiplyRows(l.qkv, s.normed, s.qkv)
		s.forRows(s.jobs.store)
		s.pool.runTasks(len(s.tiles)*s.model.cfg.KVHeads, s.attentionWork, s.jobs.attend)
		s.multiplyRows(l.out, s.heads, s.delta)
		s.forRows(s.jobs.afterAttention)
		s.multiplyRows(l.gateUp, s.normed, s.gateUp)
		s.forRows(s.jobs.activate)
		s.multiplyRows(l.down, s.act, s.delta)
		s.forRows(s.jobs.afterMLP)
	}
	s.sumHiddenStates()
	s.computeLogits()
	s.resetRows()
}

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
