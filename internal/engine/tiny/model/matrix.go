package model

import "math"

// depth is how many inputs are multiplied at a time: depth times a panel's width floats of weights stay in
// the first-level cache while all rows use them.
const depth = 64

// matrix holds weights for the product a·W, with a of shape [n, rows]. A checkpoint stores the transpose of
// W, one row for each output. Here the outputs are columns, cut into panels of the kernel's preferred width:
// within a panel the weights are [rows, width], contiguous, so that a product reads memory once, in order.
// The last panel may be narrower.
type matrix struct {
	rows, cols int // inputs, outputs
	panelWidth int // columns of each panel except the last
	data       []float32
}

func newMatrix(rows, cols, wide int) *matrix {
	return &matrix{rows: rows, cols: cols, panelWidth: wide, data: make([]float32, rows*cols)}
}

func (w *matrix) panelCount() int { return (w.cols + w.panelWidth - 1) / w.panelWidth }

// panelAt returns the weights of panel p and its width.
func (w *matrix) panelAt(p int) ([]float32, int) {
	first := p * w.panelWidth
	width := min(w.panelWidth, w.cols-first)
	return w.data[first*w.rows:][:width*w.rows], width
}

// packColumns transposes src, of shape [outputs, rows], into the columns from first on.
func (w *matrix) packColumns(first int, src []float32) {
	for out := 0; out*w.rows < len(src); out++ {
		col := first + out
		panel, width := w.panelAt(col / w.panelWidth)
		at := col % w.panelWidth
		for _, v := range src[out*w.rows:][:w.rows] {
			panel[at] = v
			at += width
		}
	}
}

// copyColumn copies one column, the weights of one output, into dst.
func (w *matrix) copyColumn(dst []float32, col int) {
	panel, width := w.panelAt(col / w.panelWidth)
	at := col % w.panelWidth
	for i := range dst[:w.rows] {
		dst[i] = panel[at]
		at += width
	}
}

// multiplyPanel computes n rows of a times panel p into c: the columns of that panel, the first of them at
// c[0]. Each element is summed over the inputs in order, so a row's result does not depend on other rows, nor
// on depth.
func (w *matrix) multiplyPanel(k kernel, p, n int, a []float32, c []float32, ldc int) {
	panel, width := w.panelAt(p)
	first := min(depth, w.rows)
	k.multiplyInto(n, width, first, a, w.rows, panel, width, c, ldc)
	for at := first; at < w.rows; at += depth {
		k.multiplyAdd(n, width, min(depth, w.rows-at), a[at:], w.rows, panel[at*width:], width, c, ldc)
	}
}

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
