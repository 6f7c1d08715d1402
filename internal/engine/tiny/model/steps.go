package model

// The steps of a layer that treat each row independently. Each is a job of the worker pool whose tasks are
// grains of rows.

// grain is how many rows make a task: enough to justify a goroutine.
const grain = 8

// elementWork is the cost of an element in these steps, in terms of a product.
const elementWork = 16

// forRows runs one of the jobs below over all rows.
func (s *slab) overRows(job func(task, worker int)) {
	work := len(s.rows) * s.model.cfg.Intermediate * elementWork
	s.crew.do((len(s.rows)+grain-1)/grain, work, job)
}

// grainRows returns the rows of a task.
func (s *slab) grainRows(task int) (first, end int) {
	return task * grain, min((task+1)*grain, len(s.rows))
}

// embedRows looks up the embeddings of the tokens and prepares their positions and the first layer.
func (s *slab) enter(task, _ int) {
	half := s.model.cfg.HeadDim / 2
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		r := &s.rows[i]
		if x := part(s.x, i, s.model.cfg.HiddenSize); r.shown != nil {
			copy(x, r.shown)
		} else {
			s.model.embedding(x, r.token)
		}
		s.model.turn(part(s.cos, i, half), part(s.sin, i, half), r.turns)
		s.normalise(i, s.model.layers[0].attnNorm)
	}
}

// storeKV finishes queries and keys and stores keys and values in the cache.
func (s *slab) store(task, _ int) {
	cfg, l := &s.model.cfg, &s.model.layers[s.layer]
	dim, half := cfg.HeadDim, cfg.HeadDim/2
	queries, keys := cfg.Heads, cfg.Heads+cfg.KVHeads
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		qkv := part(s.qkv, i, cfg.qkvCols())
		if l.bias != nil {
			addTo(qkv, l.bias)
		}
		cos, sin := part(s.cos, i, half), part(s.sin, i, half)
		for h := range keys {
			head := part(qkv, h, dim)
			switch {
			case l.qNorm == nil:
			case h < queries:
				rmsNorm(head, head, l.qNorm, cfg.RMSEps)
			default:
				rmsNorm(head, head, l.kNorm, cfg.RMSEps)
			}
			rotate(head, cos, sin)
		}
		r := &s.rows[i]
		s.cache.put(s.layer, r.block, r.slot, qkv[queries*dim:keys*dim], qkv[keys*dim:])
	}
}

// afterAttention adds the output of attention and prepares the feed-forward half.
func (s *slab) afterAttention(task, _ int) {
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		s.absorb(i)
		s.normalise(i, s.model.layers[s.layer].mlpNorm)
	}
}

// applySwiGLU is the activation of the feed-forward half.
func (s *slab) activate(task, _ int) {
	n := s.model.cfg.Intermediate
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		both := part(s.gateUp, i, 2*n)
		s.model.kernel.swiglu(part(s.act, i, n), both[:n], both[n:])
	}
}

// afterMLP adds the output of the feed-forward half and prepares what follows: the next layer, or the head.
func (s *slab) afterMLP(task, _ int) {
	weight := s.model.norm
	if s.layer+1 < len(s.model.layers) {
		weight = s.model.layers[s.layer+1].attnNorm
	}
	first, end := s.grainRows(task)
	for i := first; i < end; i++ {
		s.absorb(i)
		s.normalise(i, weight)
	}
}

// addDelta adds delta to the residual stream of row i.
func (s *slab) absorb(i int) {
	addTo(part(s.x, i, s.model.cfg.HiddenSize), part(s.delta, i, s.model.cfg.HiddenSize))
}

func (s *slab) normalise(i int, weight []float32) {
	rmsNorm(part(s.normed, i, s.model.cfg.HiddenSize), part(s.x, i, s.model.cfg.HiddenSize), weight, s.model.cfg.RMSEps)
}

// rowOf returns the i-th run of n elements.
func part(x []float32, i, n int) []float32 { return x[i*n:][:n] }

func addTo(dst, x []float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] += v
	}
}
