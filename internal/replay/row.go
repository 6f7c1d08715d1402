package replay

// Row has the measurements of one run: the JSON form of a result of replay and bench. Shares are from 0 to 1;
// times are in milliseconds unless noted.
type Row struct {
	Policy  string `json:"policy"`
	Workers int    `json:"workers"` // 0 if unknown
	// BlockSize is in tokens, Blocks is per worker; 0 if unknown.
	BlockSize int `json:"block_size,omitempty"`
	Blocks    int `json:"blocks_per_worker,omitempty"`
	// Requests were sent; Errors of them had no complete response, by kind in ErrorKinds.
	Requests   int            `json:"requests"`
	Errors     int            `json:"errors"`
	ErrorKinds map[string]int `json:"error_kinds,omitempty"`

	// TTFT is the time to the first token, ITL the time between two tokens of a response, TPOT the mean of
	// one response's times per token, E2E the time of the whole response. They cover complete responses.
	TTFT Distribution `json:"ttft_ms"`
	ITL  Distribution `json:"itl_ms"`
	TPOT Distribution `json:"tpot_ms"`
	E2E  Distribution `json:"e2e_ms"`

	// TTFTError is the difference, in either direction, between the time to the first token which the router
	// predicted when it chose the worker and the observed one; nil where nothing is predicted.
	TTFTError *Distribution `json:"ttft_error_ms,omitempty"`

	// InputTokens, CachedTokens and OutputTokens cover complete responses; CachedShare is cached over input.
	InputTokens  int64   `json:"input_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	CachedShare  float64 `json:"cached_share"`
	// Imbalance is the busiest worker's work over the mean, in computed prompt tokens plus generated tokens;
	// 0 if the workers are unknown.
	Imbalance float64 `json:"imbalance"`
	// Duration is from the first request to the end of the last response, in seconds: virtual ones in a
	// replay.
	Duration          float64 `json:"duration_s"`
	RequestsPerSecond float64 `json:"requests_per_s"`
	OutputPerSecond   float64 `json:"output_tokens_per_s"`

	// Goodput counts what met the SLO; nil if there was none.
	Goodput *Goodput `json:"goodput,omitempty"`
	// Lateness is the delay of sending after the due time; nil where the client cannot be late. Late marks a
	// client too slow for its figures to be trusted.
	Lateness *Distribution `json:"lateness_ms,omitempty"`
	Late     bool          `json:"late,omitempty"`

	// Embeddings is the use of encoders and embedding caches, the warm-up included; nil if no request showed media,
	// or it is unknown.
	Embeddings *EmbeddingUse `json:"embeddings,omitempty"`

	// Disagg says where prompts were computed, the warm-up included; nil without prefill workers.
	Disagg *DisaggUse `json:"disagg,omitempty"`

	// Ideal is the best cached share for this workload and number of workers.
	Ideal *Ideal `json:"ideal,omitempty"`
}

// EmbeddingUse counts what encoders and embedding caches of a cluster did.
type EmbeddingUse struct {
	EncodeWorkers int `json:"encode_workers"`
	// CacheBytes is the size of the embedding cache of each worker and of each encode worker.
	CacheBytes int64 `json:"cache_bytes"`
	// Objects are the media objects of prompts. Those all of whose tokens were in the KV cache are not looked up.
	Objects int64 `json:"objects"`
	// EncoderRuns are the objects encoded, anywhere.
	EncoderRuns int64 `json:"encoder_runs"`
	// Hits and Misses are look-ups in the caches of workers, and HitShare is the hits' share of them; EncoderHits and
	// EncoderMisses are look-ups in the caches of encode workers. Evictions are of all caches.
	Hits          int64   `json:"hits"`
	Misses        int64   `json:"misses"`
	HitShare      float64 `json:"hit_share"`
	EncoderHits   int64   `json:"encoder_hits"`
	EncoderMisses int64   `json:"encoder_misses"`
	Evictions     int64   `json:"evictions"`
	// Fetched are the objects whose rows came from a worker which held them and encodes nothing for others, FetchMisses the
	// answers of such workers which had evicted them, or were down.
	Fetched     int64 `json:"fetched"`
	FetchMisses int64 `json:"fetch_misses"`
}

// DisaggUse says where prompts were computed in a cluster with prefill workers, beside which its workers are decode
// workers.
type DisaggUse struct {
	PrefillWorkers int    `json:"prefill_workers"`
	Policy         string `json:"policy"`
	// MaxLocalPrefillLength and MaxPrefillQueueSize are of policy threshold.
	MaxLocalPrefillLength int `json:"max_local_prefill_length,omitempty"`
	MaxPrefillQueueSize   int `json:"max_prefill_queue_size,omitempty"`
	// Remote prompts were computed by a prefill worker, except for their ends, and Local ones by the decode worker.
	// Cancelled requests ended before that was known. A request counts once for each worker which it was sent to.
	Remote    int64 `json:"prefill_remote"`
	Local     int64 `json:"prefill_local"`
	Cancelled int64 `json:"prefill_cancelled"`
	// Decisions counts them by their reasons, LocalReasons why prompts were computed locally in the end.
	Decisions    map[string]int `json:"decisions"`
	LocalReasons map[string]int `json:"local_reasons"`
	// Jobs were made for prefill workers, several for a request if one failed, and Addressed of them for one worker.
	// QueueWait is the time which they waited for a worker, and BytesMoved the size of the blocks which came.
	Jobs       int64        `json:"jobs"`
	Addressed  int64        `json:"addressed_jobs"`
	QueueWait  Distribution `json:"queue_wait_ms"`
	BytesMoved int64        `json:"bytes_moved"`
	// DecodeComputed and PrefillComputed are prompt tokens which decode workers and prefill workers computed, RemoteTail
	// tokens which decode workers computed of remote prompts.
	DecodeComputed  int64 `json:"decode_computed_tokens"`
	PrefillComputed int64 `json:"prefill_computed_tokens"`
	RemoteTail      int64 `json:"remote_tail_tokens"`
}

// Distribution describes a set of values. Percentiles come from a histogram of three significant digits.
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

// SLO bounds the times of a response, in milliseconds; 0 is no bound.
type SLO struct {
	TTFT float64 `json:"ttft_ms,omitempty"`
	ITL  float64 `json:"itl_ms,omitempty"` // mean of a response
	E2E  float64 `json:"e2e_ms,omitempty"`
}

// Goodput counts what met an SLO.
type Goodput struct {
	SLO               SLO     `json:"slo"`
	Share             float64 `json:"share"` // of requests sent
	RequestsPerSecond float64 `json:"requests_per_s"`
}

// Ideal is the cached share which the prompts of a workload allow, in its order: with one unbounded cache,
// and with one shared LRU cache of all the workers' blocks.
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
	// Estimated means that it comes from a sample of the blocks, since there are too many.
	Estimated bool `json:"estimated,omitempty"`
}

// Plots are the data which a report draws in addition to a Row. Each histogram and series has a bounded
// length.
type Plots struct {
	TTFT Histogram `json:"ttft"`
	ITL  Histogram `json:"itl"`
	E2E  Histogram `json:"e2e"`
	// Timeline has a point for each Step seconds of the run.
	Step     float64 `json:"step_s"`
	Timeline []Point `json:"timeline"`
	// PerWorker is sorted by Worker.
	PerWorker []WorkerShare `json:"per_worker,omitempty"`
}

// Histogram counts values in buckets: Count[i] counts values above Upper[i-1] and not above Upper[i], in
// milliseconds. The bounds grow by a constant factor.
type Histogram struct {
	Upper []float64 `json:"upper_ms"`
	Count []int64   `json:"count"`
}

// Point is one step of the timeline. A request belongs to the step in which it was sent.
type Point struct {
	Sent   int     `json:"sent"`
	Errors int     `json:"errors"`
	Input  int64   `json:"input_tokens"`
	Cached int64   `json:"cached_tokens"`
	Output int64   `json:"output_tokens"`
	TTFT   float64 `json:"ttft_ms"` // mean; 0 if none
	ITL    float64 `json:"itl_ms"`  // mean of the answers' means; 0 if none
}

// WorkerShare is the work of one worker.
type WorkerShare struct {
	Worker   uint64 `json:"worker"`
	Requests int    `json:"requests"`
	Computed int64  `json:"computed_tokens"` // prompt tokens not from a cache
	Cached   int64  `json:"cached_tokens"`
	Output   int64  `json:"output_tokens"`
}

// Run is one run with everything for a report.
type Run struct {
	Row   Row   `json:"row"`
	Plots Plots `json:"plots"`
}

// Result is the result of a command, in the JSON form which replay --json and bench --json print.
type Result struct {
	Command string `json:"command"` // "replay" or "bench"
	Version string `json:"version"`
	// Settings are the flags of the run as text, in order, for repeating it.
	Settings []Setting `json:"settings,omitempty"`
	Rows     []Row     `json:"rows"`
	// Ideal is for the first number of workers, Ideals for all.
	Ideal  *Ideal  `json:"ideal,omitempty"`
	Ideals []Ideal `json:"ideals,omitempty"`
	// Plots belong to Rows; only reports use them.
	Plots []Plots `json:"-"`
	// Notes are sentences which the reader must see, such as that the client was late.
	Notes []string `json:"notes,omitempty"`
}

// Setting is a flag and its value.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
