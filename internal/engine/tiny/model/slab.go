package model

// arena is the batch that goes through the layers at one time, with its memory. A row is a token. Each row is
// computed independently except in attention, where it reads the cache.
type slab struct {
	model *Model
	cache *Cache
	crew  *crew
	max   int // rows
	// runBlocks is how many blocks of keys are multiplied together.
	runBlocks int

	rows  []row
	spans []span
	tiles []tile
	// attentionWork is the work of one layer's attention, for the worker pool.
	attention int
	wants     []want

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
type row struct {
	token    int
	position int
	block    int32
	slot     int
	shown    []float32 // instead of the token's embedding, if not nil
	turns    [3]int32  // rotary positions in time, height and width
}

// rowRun is a run of rows that belong to one sequence.
type span struct {
	blocks []int32
	first  int // row
	count  int
	start  int // position of the first row
	sum    []float64
}

// logitsRequest is a row whose logits are requested.
type want struct {
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

func newSlab(c *Cache, rows, workers int) *slab {
	m := c.model
	cfg := &m.cfg
	s := &slab{
		model: m, cache: c, crew: newCrew(workers), max: rows, runBlocks: max(1, m.kernel.columns()/c.blockSize),
		rows:   make([]row, 0, rows),
		spans:  make([]span, 0, rows),
		tiles:  make([]tile, 0, rows),
		wants:  make([]want, 0, rows),
		x:      make([]float32, rows*cfg.HiddenSize),
		normed: make([]float32, rows*cfg.HiddenSize),
		qkv:    make([]float32, rows*cfg.qkvCols()),
		heads:  make([]float32, rows*cfg.Heads*cfg.HeadDim),
		delta:  make([]float32, rows*cfg.HiddenSize),
		gateUp: make([]float32, rows*2*cfg.Intermediate),
		act:    make([]float32, rows*cfg.Intermediate),
		cos:    make([]float32, rows*cfg.HeadDim/2),
		sin:    make([]float32, rows*cfg.HeadDim/2),
	}
	positions := roundUp(min(cfg.MaxPositions, c.blocks*c.blockSize), c.blockSize)
	tileRows := tileTokens(cfg) * cfg.group()
	for range workers {
		s.workers = append(s.workers, workspace{
			query:  make([]float32, tileRows*cfg.HeadDim),
			keys:   make([]float32, cfg.HeadDim*s.runBlocks*c.blockSize),
			scores: make([]float32, tileRows*roundUp(positions, lanes)),
			sums:   make([]float32, tileRows),
			out:    make([]float32, tileRows*cfg.HeadDim),
			panel:  make([]float32, rows*m.head.wide),
		})
	}
	s.jobs.enter, s.jobs.store, s.jobs.attend = s.enter, s.store, s.attend
	s.jobs.afterAttention, s.jobs.activate, s.jobs.afterMLP = s.afterAttention, s.activate, s.afterMLP
	s.jobs.multiply, s.jobs.head = s.multiply, s.head
	return s
}

func (s *slab) full() bool { return len(s.rows) == s.max }

// resetRows empties the arena and drops its references to the caller's memory.
func (s *slab) reset() {
	clear(s.rows)
	clear(s.spans)
	clear(s.wants)
	s.rows, s.spans, s.tiles, s.wants = s.rows[:0], s.spans[:0], s.tiles[:0], s.wants[:0]
}

// takeTokens adds tokens of w from index at on, as many as fit, and returns how many.
func (s *slab) take(w *Work, at int) int {
	n := min(len(w.Tokens)-at, s.max-len(s.rows))
	size := s.cache.blockSize
	s.spans = append(s.spans, span{blocks: w.Blocks, first: len(s.rows), count: n, start: w.Start + at, sum: w.Sum})
	begun := w.Shown.before(w.Start + at)
	for i := at; i < at+n; i++ {
		p := w.Start + i
		s.rows = append(s.rows, row{token: int(w.Tokens[i]), position: p, block: w.Blocks[p/size], slot: p % size})
		begun = w.Shown.fill(&s.rows[len(s.rows)-1], begun, s.model.cfg.HiddenSize)
	}
	if at+n == len(w.Tokens) && w.Logits != nil {
		s.wants = append(s.wants, want{row: len(s.rows) - 1, logits: w.Logits})
	}
	return n
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
