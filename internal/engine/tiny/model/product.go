package model

// productRows is how many rows of a product make a task, with one panel.
const productRows = 64

// product is a multiplication in progress: rows of a, times w, into c.
type product struct {
	w    *matrix
	a, c []float32
	rows int
}

func (p *product) work() int { return p.rows * p.w.rows * p.w.cols }

// multiplyRows computes c = a·w for all rows.
func (s *slab) through(w *matrix, a, c []float32) {
	s.product = product{w: w, a: a, c: c, rows: len(s.rows)}
	tiles := (len(s.rows) + productRows - 1) / productRows
	s.crew.do(tiles*w.panels(), s.product.work(), s.jobs.multiply)
}

func (s *slab) multiply(task, _ int) {
	p := &s.product
	tile, panel := task/p.w.panels(), task%p.w.panels()
	first := tile * productRows
	n := min(productRows, p.rows-first)
	p.w.multiplyPanel(s.model.kernel, panel, n, p.a[first*p.w.rows:], p.c[first*p.w.cols+panel*p.w.wide:], p.w.cols)
}

// computeLogits computes the requested logits.
func (s *slab) throughHead() {
	if len(s.wants) == 0 {
		return
	}
	size := s.model.cfg.HiddenSize
	for i, w := range s.wants { // delta is unused at this point
		copy(part(s.delta, i, size), part(s.normed, w.row, size))
	}
	s.product = product{w: s.model.head, a: s.delta, rows: len(s.wants)}
	s.crew.do(s.model.head.panels(), s.product.work(), s.jobs.head)
}

func (s *slab) head(panel, worker int) {
	p := &s.product
	out := s.workers[worker].panel
	_, width := p.w.panel(panel)
	p.w.multiplyPanel(s.model.kernel, panel, p.rows, p.a, out, width)
	for i, w := range s.wants {
		copy(w.logits[panel*p.w.wide:], part(out, i, width))
	}
}
