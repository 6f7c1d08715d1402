package replay

// Row is what was measured of one run: the form of a result in JSON, for replay
// and bench alike. Shares are from 0 to 1; times are in milliseconds unless they
// say otherwise.
type Row struct {
	Policy  string `json:"policy"`
	Workers int    `json:"workers"` // 0 if not known
	// BlockSize is in tokens, Blocks are those of one worker; 0 if not known.
	BlockSize int `json:"block_size,omitempty"`
	Blocks    int `json:"blocks_per_worker,omitempty"`
	// Requests were sent; of those Errors had no whole answer, by kind in ErrorKinds.
	Requests   int            `json:"requests"`
	Errors     int            `json:"errors"`
	ErrorKinds map[string]int `json:"error_kinds,omitempty"`

	// TTFT is the time to the first token, ITL that between two tokens of an answer,
	// TPOT the mean of those of one answer, E2E the time of the whole answer. They are
	// of whole answers.
	TTFT Distribution `json:"ttft_ms"`
	ITL  Distribution `json:"itl_ms"`
	TPOT Distribution `json:"tpot_ms"`
	E2E  Distribution `json:"e2e_ms"`

	// InputTokens, CachedTokens and OutputTokens are of whole answers;
	// CachedShare is cached over input.
	InputTokens  int64   `json:"input_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	CachedShare  float64 `json:"cached_share"`
	// Imbalance is the busiest worker's work over the mean, work being prompt tokens
	// computed and tokens generated; 0 if the workers are not known.
	Imbalance float64 `json:"imbalance"`
	// Duration is from the first request sent to the end of the last answer, in
	// seconds: virtual ones in a replay.
	Duration          float64 `json:"duration_s"`
	RequestsPerSecond float64 `json:"requests_per_s"`
	OutputPerSecond   float64 `json:"output_tokens_per_s"`

	// Goodput is what met the SLO; nil if none was asked for.
	Goodput *Goodput `json:"goodput,omitempty"`
	// Lateness is how much later than due requests were sent; nil where the client
	// cannot be late. Late says that the client was too slow for its figures to be
	// trusted.
	Lateness *Distribution `json:"lateness_ms,omitempty"`
	Late     bool          `json:"late,omitempty"`

	// Ideal is what a cache could give for this workload and number of workers.
	Ideal *Ideal `json:"ideal,omitempty"`
}

// Distribution describes a quantity. Percentiles are of a histogram of three
// significant digits.
type Distribution struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	Min   float64 `json:"min"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// SLO bounds the times of an answer, in milliseconds; 0 is no bound.
type SLO struct {
	TTFT float64 `json:"ttft_ms,omitempty"`
	ITL  float64 `json:"itl_ms,omitempty"` // the mean of an answer's
	E2E  float64 `json:"e2e_ms,omitempty"`
}

// Goodput is what met an SLO.
type Goodput struct {
	SLO               SLO     `json:"slo"`
	Share             float64 `json:"share"` // of requests sent
	RequestsPerSecond float64 `json:"requests_per_s"`
}

// Ideal is the cached share that the prompts of a workload allow, in its order:
// by one unbounded cache, and by one shared cache of all the workers' blocks that
// drops what was not used for longest.
type Ideal struct {
	Workers      int   `json:"workers"`
	BlockSize    int   `json:"block_size,omitempty"` // in tokens
	Blocks       int   `json:"blocks_per_worker,omitempty"`
	Infinite     Share `json:"infinite"`
	SameCapacity Share `json:"same_capacity"`
}

// Share is a share of the prompt tokens.
type Share struct {
	CachedShare float64 `json:"cached_share"`
	// Estimated says that it comes of a sample of the blocks, since there are too many.
	Estimated bool `json:"estimated,omitempty"`
}

// Plots are what a report draws of one run beside its Row. Each histogram and each
// series is of bounded length, whatever the run.
type Plots struct {
	TTFT Histogram `json:"ttft"`
	ITL  Histogram `json:"itl"`
	E2E  Histogram `json:"e2e"`
	// Timeline has a point for each Step seconds of the run.
	Step     float64 `json:"step_s"`
	Timeline []Point `json:"timeline"`
	// PerWorker is in order of Worker.
	PerWorker []WorkerShare `json:"per_worker,omitempty"`
}

// Histogram counts values in buckets: Count[i] are those above Upper[i-1] and not
// above Upper[i], in milliseconds. The bounds grow by a constant factor.
type Histogram struct {
	Upper []float64 `json:"upper_ms"`
	Count []int64   `json:"count"`
}

// Point is what happened in one step of the timeline. Requests belong to the step
// in which they were sent.
type Point struct {
	Sent   int     `json:"sent"`
	Errors int     `json:"errors"`
	Input  int64   `json:"input_tokens"`
	Cached int64   `json:"cached_tokens"`
	Output int64   `json:"output_tokens"`
	TTFT   float64 `json:"ttft_ms"` // mean; 0 if none
	ITL    float64 `json:"itl_ms"`  // mean of the answers' means; 0 if none
}

// WorkerShare is what one worker did.
type WorkerShare struct {
	Worker   uint64 `json:"worker"`
	Requests int    `json:"requests"`
	Computed int64  `json:"computed_tokens"` // prompt tokens not from a cache
	Cached   int64  `json:"cached_tokens"`
	Output   int64  `json:"output_tokens"`
}

// Run is one run with all that a report needs.
type Run struct {
	Row   Row   `json:"row"`
	Plots Plots `json:"plots"`
}

// Result is the result of a command. Its JSON is what replay --json and
// bench --json print.
type Result struct {
	Command string `json:"command"` // "replay" or "bench"
	Version string `json:"version"`
	// Settings are the flags that shaped the run, as text, in order: what is needed
	// to repeat it.
	Settings []Setting `json:"settings,omitempty"`
	Rows     []Row     `json:"rows"`
	// Ideal is that of the first number of workers, Ideals those of all.
	Ideal  *Ideal  `json:"ideal,omitempty"`
	Ideals []Ideal `json:"ideals,omitempty"`
	// Plots belong to Rows; only reports have them.
	Plots []Plots `json:"-"`
	// Notes are sentences that the reader must see, such as that the client was late.
	Notes []string `json:"notes,omitempty"`
}

// Setting is a flag and its value.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
