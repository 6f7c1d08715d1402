package model

import "math"

// productRows is how many rows of a product make a task, with one panel.
const productRows = 64

// product is a multiplication in progress: rows of a, times w, into c.
type product struct {
	w    *matrix
	a, c []float32
	rows int
}

func (p *product) workCost() int { return p.rows * p.w.rows * p.w.cols }

// multiplyRows computes c = a·w for all rows.
func (s *arena) multiplyRows(w *matrix, a, c []float32) {
	s.product = product{w: w, a: a, c: c, rows: len(s.rows)}
	tiles := (len(s.rows) + productRows - 1) / productRows
	s.pool.runTasks(tiles*w.panelCount(), s.product.workCost(), s.jobs.multiply)
}

func (s *arena) multiplyTask(task, _ int) {
	p := &s.product
	tile, panel := task/p.w.panelCount(), task%p.w.panelCount()
	first := tile * productRows
	n := min(productRows, p.rows-first)
	p.w.multiplyPanel(s.model.kernel, panel, n, p.a[first*p.w.rows:], p.c[first*p.w.cols+panel*p.w.panelWidth:], p.w.cols)
}

// computeLogits computes the requested logits.
func (s *arena) computeLogits() {
	if len(s.logitsRequests) == 0 {
		return
	}
	size := s.model.cfg.HiddenSize
	for i, w := range s.logitsRequests { // delta is unused at this point
		copy(rowOf(s.delta, i, size), rowOf(s.normed, w.row, size))
	}
	s.product = product{w: s.model.head, a: s.delta, rows: len(s.logitsRequests)}
	s.pool.runTasks(s.model.head.panelCount(), s.product.workCost(), s.jobs.head)
}

func (s *arena) multiplyHeadPanel(panel, worker int) {
	p := &s.product
	out := s.workers[worker].panel
	_, width := p.w.panelAt(panel)
	p.w.multiplyPanel(s.model.kernel, panel, p.rows, p.a, out, width)
	for i, w := range s.logitsRequests {
		copy(w.logits[panel*p.w.panelWidth:], rowOf(out, i, width))
	}
}

// rmsNorm writes x · weight / rms(x) into dst, where rms is the root of the mean
// square plus eps. The squares are summed in order, as float64.
func rmsNorm(dst, x, weight []float32, eps float64) {
	var sum float64
	for _, v := range x {
		sum += float64(float64(v) * float64(v))
	}
	scale := float32(1 / math.Sqrt(sum/float64(len(x))+eps))
	dst, weight = dst[:len(x)], weight[:len(x)]
	for i, v := range x {
		dst[i] = weight[i] * float32(v*scale)
	}
}
