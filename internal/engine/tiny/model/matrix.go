package model

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
