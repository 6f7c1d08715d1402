package model

// arena is the batch that goes through the layers at one time, with its memory. A row is a token. Each row is
// computed independently except in attention, where it reads the cache.
type arena struct {
	model   *Model
	cache   *Cache
	pool    *workerPool
	maxRows int // rows
	// runBlocks is how many blocks of keys are multiplied together.
	runBlocks int

	rows  []tokenRow
	runs  []rowRun
	tiles []attentionTile
	// attentionWork is the work of one layer's attention, for the worker pool.
	attentionWork  int
	logitsRequests []logitsRequest

	x      []float32 // [rows, HiddenSize], the residual stream
	normed []float32 // [rows, HiddenSize]
	qkv    []float32 // [rows, qkvCols]
	heads  []float32 // [rows, Heads·HeadDim], the output of attention
	delta  []float32 // [rows, HiddenSize], what a layer adds to x
	gateUp []float32 // [rows, 2·Intermediate]
	act    []float32 // [rows, Intermediate]
	cos    []float32 // [rows, HeadDim/2]
	sin    []float32

	workers []workspace

	// The step in progress, for the jobs of the worker pool.
	layer   int
	product product

	// The jobs, bound once: a method value allocates on each use.
	jobs struct {
		enter, store, attend, afterAttention, activate, afterMLP, multiply, head func(task, worker int)
	}
}

// tokenRow is a token's position in its sequence and in the cache.
type tokenRow struct {
	token    int
	position int
	block    int32
	offset   int
	mediaRow []float32 // instead of the token's embedding, if not nil
	rotary   [3]int32  // rotary positions in time, height and width
}

// rowRun is a run of rows that belong to one sequence.
type rowRun struct {
	blocks []int32
	first  int // row
	count  int
	start  int // position of the first row
	sum    []float64
}

// logitsRequest is a row whose logits are requested.
type logitsRequest struct {
	row    int
	logits []float32
}

// workspace is the scratch memory of one worker of the pool.
type workspace struct {
	query  []float32 // [tileRows, HeadDim]
	keys   []float32 // [HeadDim, runBlocks·blockSize]
	scores []float32 // [tileRows, positions]
	sums   []float32 // [tileRows], of the exponentials of scores
	out    []float32 // [tileRows, HeadDim]
	panel  []float32 // [rows, wide], of the head
}

func newArena(c *Cache, rows, workers int) *arena {
	m := c.model
	cfg := &m.cfg
	s := &arena{
		model: m, cache: c, pool: newWorkerPool(workers), maxRows: rows, runBlocks: max(1, m.kernel.panelWidth()/c.blockSize),
		rows:           make([]tokenRow, 0, rows),
		runs:           make([]rowRun, 0, rows),
		tiles:          make([]attentionTile, 0, rows),
		logitsRequests: make([]logitsRequest, 0, rows),
		x:              make([]float32, rows*cfg.HiddenSize),
		normed:         make([]float32, rows*cfg.HiddenSize),
		qkv:            make([]float32, rows*cfg.qkvCols()),
		heads:          make([]float32, rows*cfg.Heads*cfg.HeadDim),
		delta:          make([]float32, rows*cfg.HiddenSize),
		gateUp:         make([]float32, rows*2*cfg.Intermediate),
		act:            make([]float32, rows*cfg.Intermediate),
		cos:            make([]float32, rows*cfg.HeadDim/2),
		sin:            make([]float32, rows*cfg.HeadDim/2),
	}
	positions := roundUp(min(cfg.MaxPositions, c.blocks*c.blockSize), c.blockSize)
	tileRows := tileTokens(cfg) * cfg.headGroup()
	for range workers {
		s.workers = append(s.workers, workspace{
			query:  make([]float32, tileRows*cfg.HeadDim),
			keys:   make([]float32, cfg.HeadDim*s.runBlocks*c.blockSize),
			scores: make([]float32, tileRows*roundUp(positions, lanes)),
			sums:   make([]float32, tileRows),
			out:    make([]float32, tileRows*cfg.HeadDim),
			panel:  make([]float32, rows*m.head.panelWidth),
		})
	}
	s.jobs.enter, s.jobs.store, s.jobs.attend = s.embedRows, s.storeKV, s.attendTile
	s.jobs.afterAttention, s.jobs.activate, s.jobs.afterMLP = s.afterAttention, s.applySwiGLU, s.afterMLP
	s.jobs.multiply, s.jobs.head = s.multiplyTask, s.multiplyHeadPanel
	return s
}

func (s *arena) isFull() bool { return len(s.rows) == s.maxRows }

// resetRows empties the arena and drops its references to the caller's memory.
func (s *arena) resetRows() {
	clear(s.rows)
	clear(s.runs)
	clear(s.logitsRequests)
	s.rows, s.runs, s.tiles, s.logitsRequests = s.rows[:0], s.runs[:0], s.tiles[:0], s.logitsRequests[:0]
}

// takeTokens adds tokens of w from index at on, as many as fit, and returns how many.
func (s *arena) takeTokens(w *Work, at int) int {
	n := min(len(w.Tokens)-at, s.maxRows-len(s.rows))
	size := s.cache.blockSize
	s.runs = append(s.runs, rowRun{blocks: w.Blocks, first: len(s.rows), count: n, start: w.Start + at, sum: w.Sum})
	begun := w.Media.countStarted(w.Start + at)
	for i := at; i < at+n; i++ {
		p := w.Start + i
		s.rows = append(s.rows, tokenRow{token: int(w.Tokens[i]), position: p, block: w.Blocks[p/size], offset: p % size})
		begun = w.Media.fillRow(&s.rows[len(s.rows)-1], begun, s.model.cfg.HiddenSize)
	}
	if at+n == len(w.Tokens) && w.Logits != nil {
		s.logitsRequests = append(s.logitsRequests, logitsRequest{row: len(s.rows) - 1, logits: w.Logits})
	}
	return n
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
