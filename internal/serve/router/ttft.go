package router

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/accuracy"
	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/obs"
)

// ttftBounds are the upper bounds of the buckets of errors, in seconds.
var ttftBounds = [...]float64{0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10}

// ttftRecord compares the predicted with the observed times to the first token of a worker, in its present epoch.
// The router's mu guards it.
type ttftRecord struct {
	latest              accuracy.TTFTRecord
	counts              [len(ttftBounds) + 1]uint64
	count               uint64
	errors              float64 // sum, in seconds
	predicted, observed float64
}

// addTime adds a first token, and reports whether the predictions began or ceased to be off.
func (t *ttftRecord) addTime(predicted, observed time.Duration) (changed bool) {
	e := (observed - predicted).Abs().Seconds()
	at, _ := slices.BinarySearch(ttftBounds[:], e)
	t.counts[at]++
	t.count++
	t.errors += e
	t.predicted += predicted.Seconds()
	t.observed += observed.Seconds()
	return t.latest.AddTime(predicted, observed)
}

// recordTTFTLocked compares the first token of an attempt with its prediction, and returns the observed time; 0
// if there was no prediction.
func (r *Router) recordTTFTLocked(p *modelPool, key activeseq.AttemptKey) time.Duration {
	t, ok := p.router.CompareFirstToken(r.now(), key)
	if !ok {
		return 0
	}
	m := r.memberLocked(t.Worker)
	if m == nil {
		return t.Observed
	}
	if m.ttft == nil {
		m.ttft = &ttftRecord{}
	}
	if m.ttft.addTime(t.Predicted, t.Observed) {
		r.logTTFT(t.Worker, m.ttft)
	}
	return t.Observed
}

// logTTFT logs that a worker's predictions began or ceased to be off.
func (r *Router) logTTFT(w kv.Worker, t *ttftRecord) {
	if !t.latest.IsOff() {
		r.log.Info("a worker's first tokens come when predicted", "worker", uint64(w.ID), "rank", w.Rank)
		return
	}
	e := t.latest.Evidence()
	r.throttle.Log(context.Background(), slog.LevelWarn, "a worker's first tokens do not come when predicted",
		"worker", uint64(w.ID), "rank", w.Rank, "mean_error", e.Error.Round(time.Millisecond), "mean_ttft", e.Observed.Round(time.Millisecond),
		"later", e.Higher, "requests", e.Requests, "remedy", ttftRemedy(e))
}

// ttftRemedy says what an operator can do about predictions which are off.
func ttftRemedy(e accuracy.TTFTEvidence) string {
	switch {
	case 4*e.Higher >= 3*e.Requests:
		return "the worker has more to do than the router knows: look for clients that reach it past the routers, for routers without --router-replica-sync, and for an engine that waits for memory (penstock workers)"
	case 4*e.Higher <= e.Requests:
		return "the worker has less to do than the router believes: compare its cached tokens with the predicted ones (penstock workers), and look for requests that are reserved and never sent"
	}
	return "the times vary: look for other load on the worker's machine, and for prompts whose media the engine encodes"
}

// speedRow is the JSON of what was learned of a worker's speed, and of how good the predictions are.
type speedRow struct {
	PrefillFixed    float64 `json:"prefill_fixed_ms"`
	PrefillThousand float64 `json:"prefill_ms_per_1000_tokens"`
	Step            float64 `json:"step_ms"`
	Relative        float64 `json:"relative_time"` // for some work, against a typical worker
	// FirstTokens were compared with their predictions. ObservedTTFT and TTFTError are means over the latest ones.
	// Off says that the error is large.
	FirstTokens  uint64  `json:"first_tokens"`
	ObservedTTFT float64 `json:"observed_ttft_ms"`
	TTFTError    float64 `json:"ttft_error_ms"`
	Off          bool    `json:"ttft_off"`
}

// speedRowLocked returns the row of a worker; nil for a router process, whose workers have rates of their own.
func (m *member) speedRowLocked(p *route.Router) *speedRow {
	s, ok := p.SpeedOf(m.worker)
	if !ok || m.in.Card.Router {
		return nil
	}
	row := &speedRow{PrefillFixed: roundMs(s.PrefillFixed), PrefillThousand: roundMs(s.PrefillThousand), Step: roundMs(s.Step), Relative: roundMs(s.Relative)}
	if t := m.ttft; t != nil {
		e := t.latest.Evidence()
		row.FirstTokens, row.Off = t.count, t.latest.IsOff()
		row.ObservedTTFT, row.TTFTError = roundMs(toMs(e.Observed)), roundMs(toMs(e.Error))
	}
	return row
}

// roundMs rounds to a thousandth.
func roundMs(ms float64) float64 { return float64(int64(ms*1000+0.5)) / 1000 }

// ttftRows returns copies of the records of all workers.
func (r *Router) ttftRows() map[kv.Worker]ttftRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows := map[kv.Worker]ttftRecord{}
	for _, m := range r.mu.members {
		if m.ttft != nil {
			rows[m.worker] = *m.ttft
		}
	}
	return rows
}

// ttftMetrics compare predicted with observed times to the first token; they are read on collection.
type ttftMetrics struct {
	r                           *Router
	errors, predicted, observed *prometheus.Desc
}

var _ prometheus.Collector = (*ttftMetrics)(nil)

func newTTFTMetrics(r *Router) *ttftMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_router_"+name, help, []string{"worker", "dp_rank"}, nil)
	}
	return &ttftMetrics{
		r:         r,
		errors:    desc("ttft_error_seconds", "Difference, in either direction, between the predicted and the observed time from the choice of a worker to the first token."),
		predicted: desc("worker_predicted_ttft_seconds_total", "Predicted times to the first token, of the requests whose first token came."),
		observed:  desc("worker_observed_ttft_seconds_total", "Sum of the observed times to the first token, over the requests whose predictions are counted."),
	}
}

// Describe implements prometheus.Collector.
func (m *ttftMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.errors
	ch <- m.predicted
	ch <- m.observed
}

// Collect implements prometheus.Collector.
func (m *ttftMetrics) Collect(ch chan<- prometheus.Metric) {
	rows := m.r.ttftRows()
	workers := slices.SortedFunc(maps.Keys(rows), kv.Worker.Compare)
	var other ttftRecord
	fit := obs.LimitRows(ttftRoom, workers, func(kv.Worker) int { return (len(ttftBounds) + 5) * workerLine }, func(w kv.Worker) {
		other.addRecord(rows[w])
	})
	for _, w := range fit {
		m.collectRecord(ch, rows[w], strconv.FormatUint(uint64(w.ID), 10), strconv.FormatUint(uint64(w.Rank), 10))
	}
	if len(fit) < len(rows) {
		m.collectRecord(ch, other, obs.Other, "")
	}
}

// ttftRoom bounds the bytes of /metrics for the times to first tokens.
const ttftRoom = 256 << 10

// addRecord adds the sums of another record.
func (t *ttftRecord) addRecord(o ttftRecord) {
	for i := range t.counts {
		t.counts[i] += o.counts[i]
	}
	t.count += o.count
	t.errors += o.errors
	t.predicted += o.predicted
	t.observed += o.observed
}

func (m *ttftMetrics) collectRecord(ch chan<- prometheus.Metric, t ttftRecord, worker, rank string) {
	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, bound := range ttftBounds {
		sum += t.counts[i]
		buckets[bound] = sum
	}
	ch <- prometheus.MustNewConstHistogram(m.errors, t.count, t.errors, buckets, worker, rank)
	ch <- prometheus.MustNewConstMetric(m.predicted, prometheus.CounterValue, t.predicted, worker, rank)
	ch <- prometheus.MustNewConstMetric(m.observed, prometheus.CounterValue, t.observed, worker, rank)
}
