package model

const (
	// productRows is how many rows of a product make a task.
	productRows = 64
	// productWork is how many multiplications a task has at least, where the
	// matrix has as many: below, starting a goroutine costs more than it gains.
	productWork = 1 << 16
)

// product is a multiplication in progress: rows of a, times w, into c.
type product struct {
	w      *matrix
	a, c   []float32
	rows   int
	panels int // of w, in one task
}

// cut sets how many panels make a task and returns the number of tasks. It
// decides about speed only: any cut gives the same bits.
func (p *product) cut(tileRows int) (tasks int) {
	each := min(p.rows, tileRows) * panelWidth * p.w.rows
	p.panels = (productWork + each - 1) / each
	return p.columnTasks() * ((p.rows + tileRows - 1) / tileRows)
}

func (p *product) columnTasks() int { return (p.w.panels() + p.panels - 1) / p.panels }

// through computes c = a·w for all rows.
func (s *slab) through(w *matrix, a, c []float32) {
	s.product = product{w: w, a: a, c: c, rows: len(s.rows)}
	s.crew.do(s.product.cut(productRows), s.jobs.multiply)
}

func (s *slab) multiply(task, _ int) {
	p := &s.product
	tile, column := task/p.columnTasks(), task%p.columnTasks()
	first := tile * productRows
	n := min(productRows, p.rows-first)
	for panel := column * p.panels; panel < min((column+1)*p.panels, p.w.panels()); panel++ {
		p.w.multiplyPanel(s.model.kernel, panel, n, p.a[first*p.w.rows:], p.c[first*p.w.cols+panel*panelWidth:], p.w.cols)
	}
}

// throughHead computes the logits that are wanted.
func (s *slab) throughHead() {
	if len(s.wants) == 0 {
		return
	}
	size := s.model.cfg.HiddenSize
	for i, w := range s.wants { // delta is free by now
		copy(part(s.delta, i, size), part(s.normed, w.row, size))
	}
	s.product = product{w: s.model.head, a: s.delta, rows: len(s.wants)}
	s.crew.do(s.product.cut(s.max), s.jobs.head)
}

func (s *slab) head(task, worker int) {
	p := &s.product
	out := s.workers[worker].panel
	for panel := task * p.panels; panel < min((task+1)*p.panels, p.w.panels()); panel++ {
		_, width := p.w.panel(panel)
		p.w.multiplyPanel(s.model.kernel, panel, p.rows, p.a, out, width)
		for i, w := range s.wants {
			copy(w.logits[panel*panelWidth:], part(out, i, width))
		}
	}
}
