package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// RecorderConfig configures a [Recorder].
type RecorderConfig struct {
	// Policy, Workers, BlockSize and Blocks are copied to the row. If Workers is known, idle workers count in
	// the imbalance.
	Policy            string
	Workers           int
	BlockSize, Blocks int
	// SLO is the objective of goodput; the zero value is none.
	SLO SLO
	// WarmupRequests excludes the requests with a lower Index from the figures, Warmup the ones sent earlier.
	WarmupRequests int
	Warmup         time.Duration
	// Sender says whether the client can be late. The row then has its lateness.
	Sender SenderKind
}

// SenderKind is the kind of client which sends the requests.
type SenderKind int

const (
	// VirtualSender sends exactly on time.
	VirtualSender SenderKind = iota
	// RealSender sends when its machine schedules it.
	RealSender
)

const (
	maxErrorKinds = 32
	maxWorkers    = 1 << 16
	// otherErrors counts errors of further kinds once there are maxErrorKinds.
	otherErrors = "other"
)

// Recorder turns the samples of a run into a [Run]. It has one owner. Its memory is bounded for any number of
// requests: about 2.5 MB, and 40 bytes per worker.
type Recorder struct {
	cfg RecorderConfig

	samples, counted int64 // all samples, and the ones in the figures
	errors, metSLO   int
	errorKinds       map[string]int
	first, last      time.Duration // sent, finished
	input, cached    int64
	output           int64
	ttft, itl        timeHistogram
	tpot, e2e        timeHistogram
	lateness         timeHistogram
	ttftError        timeHistogram
	line             timeline
	workers          map[uint64]*WorkerShare
	lastWorker       *WorkerShare // the worker of the previous sample
	warmedUp         bool
	skippedSamples   int64
	embeddings       *EmbeddingUse
	disagg           *DisaggUse
}

// NewRecorder returns an empty recorder.
func NewRecorder(cfg RecorderConfig) *Recorder {
	return &Recorder{
		cfg: cfg, errorKinds: map[string]int{}, workers: map[uint64]*WorkerShare{},
		ttft: newTimeHistogram(), itl: newTimeHistogram(), tpot: newTimeHistogram(), e2e: newTimeHistogram(), lateness: newTimeHistogram(),
		ttftError: newTimeHistogram(),
	}
}

// RecordGap records the time between two tokens of a request, n times, also for responses which fail later.
// Gaps before the first request after the warm-up finishes belong to the warm-up.
func (r *Recorder) RecordGap(between time.Duration, n int) {
	if !r.warmedUp && r.hasWarmup() {
		return
	}
	r.itl.addTimes(between, n)
}

// hasWarmup reports whether there is a warm-up.
func (r *Recorder) hasWarmup() bool { return r.cfg.WarmupRequests > 0 || r.cfg.Warmup > 0 }

// RecordSample records a finished request. Its times count from Sent: the client's lateness is not the
// server's and is counted apart.
func (r *Recorder) RecordSample(s *Sample) {
	r.samples++
	if s.Index < r.cfg.WarmupRequests || s.Sent < r.cfg.Warmup {
		r.skippedSamples++
		return
	}
	r.warmedUp = true
	if r.counted == 0 || s.Sent < r.first {
		r.first = s.Sent
	}
	r.last = max(r.last, s.Done)
	r.counted++
	if r.cfg.Sender == RealSender {
		r.lateness.addTimes(s.Sent-s.Due, 1)
	}
	tick := r.line.stepAt(s.Sent)
	tick.sent++
	if s.Error != "" {
		tick.errors++
		r.countFailure(s)
		return
	}
	r.countAnswer(s, tick)
}

// countFailure counts a request without a complete response.
func (r *Recorder) countFailure(s *Sample) {
	r.errors++
	kind := s.Error
	if _, known := r.errorKinds[kind]; !known && len(r.errorKinds) >= maxErrorKinds {
		kind = otherErrors
	}
	r.errorKinds[kind]++
}

// countAnswer counts a complete response.
func (r *Recorder) countAnswer(s *Sample, tick *timelineStep) {
	r.input += int64(s.Input)
	r.cached += int64(s.Cached)
	r.output += int64(s.Output)
	tick.input += int64(s.Input)
	tick.cached += int64(s.Cached)
	tick.output += int64(s.Output)

	e2e := max(s.Done-s.Sent, 0)
	r.e2e.addTimes(e2e, 1)
	var ttft, tpot time.Duration
	if s.Output > 0 {
		ttft = max(s.First-s.Sent, 0)
		r.ttft.addTimes(ttft, 1)
		if s.Predicted > 0 {
			r.ttftError.addTimes((s.First - s.Predicted).Abs(), 1)
		}
		tick.ttft += int64(ttft)
		tick.answers++
	}
	if s.Output > 1 {
		tpot = max(s.Last-s.First, 0) / time.Duration(s.Output-1)
		r.tpot.addTimes(tpot, 1)
		tick.itl += int64(tpot)
		tick.itlAnswers++
	}
	if r.cfg.SLO.isMetBy(ttft, tpot, e2e) {
		r.metSLO++
	}
	w := r.workerShare(s.Worker)
	w.Requests++
	w.Computed += int64(s.Input - s.Cached)
	w.Cached += int64(s.Cached)
	w.Output += int64(s.Output)
}

// isMetBy reports whether a response with these times meets the bounds.
func (o SLO) isMetBy(ttft, itl, e2e time.Duration) bool {
	within := func(d time.Duration, bound float64) bool { return bound <= 0 || toMilliseconds(int64(d)) <= bound }
	return within(ttft, o.TTFT) && within(itl, o.ITL) && within(e2e, o.E2E)
}

// workerShare returns the share of a worker. Beyond maxWorkers ids count as unknown: a server can send any
// number.
func (r *Recorder) workerShare(id uint64) *WorkerShare {
	if r.lastWorker != nil && r.lastWorker.Worker == id {
		return r.lastWorker
	}
	w := r.workers[id]
	if w == nil {
		if len(r.workers) >= maxWorkers {
			id = 0
		}
		if w = r.workers[id]; w == nil {
			w = &WorkerShare{Worker: id}
			r.workers[id] = w
		}
	}
	r.lastWorker = w
	return w
}

// RecordEmbeddings records the use of encoders and embedding caches in the run.
func (r *Recorder) RecordEmbeddings(u EmbeddingUse) { r.embeddings = &u }

// RecordDisagg records where prompts were computed in the run.
func (r *Recorder) RecordDisagg(u DisaggUse) { r.disagg = &u }

// Run returns the results so far.
func (r *Recorder) Run() Run {
	shares := make([]WorkerShare, 0, len(r.workers))
	for _, w := range r.workers {
		shares = append(shares, *w)
	}
	slices.SortFunc(shares, func(a, b WorkerShare) int { return cmp.Compare(a.Worker, b.Worker) })
	if len(shares) == 1 && shares[0].Worker == 0 {
		shares = nil // the workers are unknown
	}
	run := Run{
		Row: Row{
			Policy: r.cfg.Policy, Workers: r.cfg.Workers, BlockSize: r.cfg.BlockSize, Blocks: r.cfg.Blocks,
			Requests: int(r.counted), Errors: r.errors,
			TTFT: r.ttft.toDistribution(), ITL: r.itl.toDistribution(), TPOT: r.tpot.toDistribution(), E2E: r.e2e.toDistribution(),
			InputTokens: r.input, CachedTokens: r.cached, OutputTokens: r.output,
			Imbalance: computeImbalance(shares, r.cfg.Workers),
		},
		Plots: Plots{
			TTFT: r.ttft.toHistogram(), ITL: r.itl.toHistogram(), E2E: r.e2e.toHistogram(),
			Step: r.line.step.Seconds(), Timeline: r.line.toPoints(), PerWorker: shares,
		},
	}
	row := &run.Row
	row.Embeddings, row.Disagg = r.embeddings, r.disagg
	if r.errors > 0 {
		row.ErrorKinds = maps.Clone(r.errorKinds)
	}
	if off := r.ttftError.toDistribution(); off.Count > 0 {
		row.TTFTError = &off
	}
	row.CachedShare = divideOrZero(float64(r.cached), float64(r.input))
	row.Duration = max(r.last-r.first, 0).Seconds()
	row.RequestsPerSecond = divideOrZero(float64(r.counted-int64(r.errors)), row.Duration)
	row.OutputPerSecond = divideOrZero(float64(r.output), row.Duration)
	if r.cfg.SLO != (SLO{}) {
		row.Goodput = &Goodput{
			SLO:               r.cfg.SLO,
			Share:             divideOrZero(float64(r.metSLO), float64(r.counted)),
			RequestsPerSecond: divideOrZero(float64(r.metSLO), row.Duration),
		}
	}
	if r.cfg.Sender == RealSender {
		late := r.lateness.toDistribution()
		row.Lateness = &late
		row.Late = late.P99 > toleratedLateness(row.TTFT.Mean)
	}
	return run
}

func divideOrZero(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// computeImbalance returns the busiest worker's work over the mean. Work of unknown workers is left out.
func computeImbalance(shares []WorkerShare, workers int) float64 {
	var most, sum int64
	known := 0
	for _, w := range shares {
		if w.Worker == 0 && workers == 0 {
			continue
		}
		work := w.Computed + w.Output
		most, sum = max(most, work), sum+work
		known++
	}
	if sum == 0 {
		return 0
	}
	return float64(most) * float64(max(known, workers)) / float64(sum)
}

const (
	minTolerated = 1   // milliseconds
	maxTolerated = 100 // milliseconds
)

// toleratedLateness returns the lateness in milliseconds which one request in a hundred may exceed before the
// figures are marked: a twentieth of the mean time to the first token, since late requests come in bursts and
// their waiting for each other is counted as the server's time. Below a millisecond it is the noise of timers
// and schedulers. Above a tenth of a second the client is too slow for any server: it will read tokens late
// too.
func toleratedLateness(meanTTFT float64) float64 {
	return max(minTolerated, min(meanTTFT/20, maxTolerated))
}

// Notes returns sentences which the reader of the run must see.
func (r *Recorder) Notes() []string {
	var notes []string
	if r.skippedSamples > 0 {
		notes = append(notes, fmt.Sprintf("Warm-up: %d of %d requests are not in the figures.", r.skippedSamples, r.samples))
	}
	if r.hasWarmup() && r.counted == 0 && r.samples > 0 {
		notes = append(notes, "Everything was warm-up: nothing is left to measure. Make the warm-up shorter or the run longer.")
	}
	if run := r.Run(); run.Row.Late {
		notes = append(notes, fmt.Sprintf(
			"The client was late: one request in a hundred was sent more than %.1f ms after it was due, where %.1f ms are tolerated. "+
				"The figures are not the server's alone; run the client on another machine, or send less.",
			run.Row.Lateness.P99, toleratedLateness(run.Row.TTFT.Mean)))
	}
	return notes
}
