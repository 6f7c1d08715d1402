package model

import "fmt"

// The steps of a layer that treat each row independently. Each is a job of the worker pool whose tasks are
// grains of rows.

// grain is how many rows make a task: enough to justify a goroutine.
const grain = 8

// elementWork is the cost of an element in these steps, in terms of a product.
const elementWork = 16

// forRows runs one of the jobs below over all rows.
func (s *arena) forRows(job func(task, worker int)) {
	work := len(s.rows) * s.model.cfg.Intermediate * elementWork
	s.pool.runTasks((len(s.rows)+grain-1)/grain, work, job)
}

// grainRows returns the rows of a task.
func (s *arena) grainRows(task int) (first, end int) {
	return task * grain, min((task+1)*grain, len(s.rows))
}

// embedRows looks up the embeddings of the tokens and prepares their positions and the first layer.
func (s *arena) embedRows(task, _ int) {
	half := s.model.cfg.HeadDim / 2
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		r := &s.rows[i]
		if x := rowOf(s.x, i, s.model.cfg.HiddenSize); r.mediaRow != nil {
			copy(x, r.mediaRow)
		} else {
			s.model.copyEmbedding(x, r.token)
		}
		s.model.fillTokenAngles(rowOf(s.cos, i, half), rowOf(s.sin, i, half), r.rotary)
		s.normalizeRow(i, s.model.layers[0].attnNorm)
	}
}

// storeKV finishes queries and keys and stores keys and values in the cache.
func (s *arena) storeKV(task, _ int) {
	cfg, l := &s.model.cfg, &s.model.layers[s.layer]
	dim, half := cfg.HeadDim, cfg.HeadDim/2
	queries, keys := cfg.Heads, cfg.Heads+cfg.KVHeads
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		qkv := rowOf(s.qkv, i, cfg.qkvCols())
		if l.bias != nil {
			addVector(qkv, l.bias)
		}
		cos, sin := rowOf(s.cos, i, half), rowOf(s.sin, i, half)
		for h := range keys {
			head := rowOf(qkv, h, dim)
			switch {
			case l.qNorm == nil:
			case h < queries:
				rmsNorm(head, head, l.qNorm, cfg.RMSEps)
			default:
				rmsNorm(head, head, l.kNorm, cfg.RMSEps)
			}
			rotateHead(head, cos, sin)
		}
		r := &s.rows[i]
		s.cache.storeToken(s.layer, r.block, r.offset, qkv[queries*dim:keys*dim], qkv[keys*dim:])
	}
}

// afterAttention adds the output of attention and prepares the feed-forward half.
func (s *arena) afterAttention(task, _ int) {
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		s.addDelta(i)
		s.normalizeRow(i, s.model.layers[s.layer].mlpNorm)
	}
}

// applySwiGLU is the activation of the feed-forward half.
func (s *arena) applySwiGLU(task, _ int) {
	n := s.model.cfg.Intermediate
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		both := rowOf(s.gateUp, i, 2*n)
		s.model.kernel.swiglu(rowOf(s.act, i, n), both[:n], both[n:])
	}
}

// afterMLP adds the output of the feed-forward half and prepares what follows: the next layer, or the head.
func (s *arena) afterMLP(task, _ int) {
	weight := s.model.norm
	if s.layer+1 < len(s.model.layers) {
		weight = s.model.layers[s.layer+1].attnNorm
	}
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		s.addDelta(i)
		s.normalizeRow(i, weight)
	}
}

// addDelta adds delta to the residual stream of row i.
func (s *arena) addDelta(i int) {
	addVector(rowOf(s.x, i, s.model.cfg.HiddenSize), rowOf(s.delta, i, s.model.cfg.HiddenSize))
}

func (s *arena) normalizeRow(i int, weight []float32) {
	rmsNorm(rowOf(s.normed, i, s.model.cfg.HiddenSize), rowOf(s.x, i, s.model.cfg.HiddenSize), weight, s.model.cfg.RMSEps)
}

// rowOf returns the i-th run of n elements.
func rowOf(x []float32, i, n int) []float32 { return x[i*n:][:n] }

func addVector(dst, x []float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] += v
	}
}

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
