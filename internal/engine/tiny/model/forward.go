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
		if err := c.check(&work[i]); err != nil {
			return fmt.Errorf("model forward work %d: %w", i, err)
		}
	}
	s := c.slab
	s.reset() // a panic may have left rows behind
	for i := range work {
		for at := 0; at < len(work[i].Tokens); {
			at += s.take(&work[i], at)
			if s.full() {
				s.run()
			}
		}
	}
	s.run()
	return nil
}

// runLayers takes the rows of the arena through the layers and empties it. Keys and values of a layer are
// complete before its attention reads them; a later pass finds this one's in the cache, as it finds an
// earlier call's.
func (s *slab) run() {
	if len(s.rows) == 0 {
		return
	}
	s.cutTiles()
	s.layer = 0
	s.overRows(s.jobs.enter)
	for i := range s.model.layers {
		l := &s.model.layers[i]
		s.layer = i
		s.through(l.qkv, s.normed, s.qkv)
		s.overRows(s.jobs.store)
		s.crew.do(len(s.tiles)*s.model.cfg.KVHeads, s.attention, s.jobs.attend)
		s.through(l.out, s.heads, s.delta)
		s.overRows(s.jobs.afterAttention)
		s.through(l.gateUp, s.normed, s.gateUp)
		s.overRows(s.jobs.activate)
		s.through(l.down, s.act, s.delta)
		s.overRows(s.jobs.afterMLP)
	}
	s.sumHidden()
	s.throughHead()
	s.reset()
}
