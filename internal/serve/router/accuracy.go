package router

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/accuracy"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// predictionRecord compares the predicted with the reported cache hits of a worker, in its present
// epoch. The lock of predictions guards it.
type predictionRecord struct {
	accuracyRecord accuracy.Record
	// requests with a report, and their predicted and reported tokens.
	requests, predicted, reported uint64
	blockSize                     int
}

// cacheComparison is the reported and the predicted cache hit of one prompt, in tokens.
type cacheComparison struct {
	worker              kv.Worker
	predicted, reported int
	verdictChanged      bool // the verdict on the worker's predictions changed
}

// recordLocked returns the record of a worker that exists.
func (p *predictions) recordLocked(w kv.Worker) *predictionRecord {
	t := p.mu.tried[w]
	if t == nil {
		t = &predictionRecord{}
		p.mu.tried[w] = t
	}
	return t
}

// addReport adds the report of an attempt, and reports whether that changes the verdict.
func (t *predictionRecord) addReport(out *cacheComparison, s *sentAttempt) (changed bool) {
	t.requests++
	t.predicted += uint64(out.predicted)
	t.reported += uint64(out.reported)
	t.blockSize = s.blockSize
	return t.accuracyRecord.AddReport(s.fromEvents, s.predicted, out.reported/s.blockSize)
}

// mispredictWarning returns the warning about the predictions; nil if they are fair.
func (t *predictionRecord) mispredictWarning() *engine.Warning {
	predicted, found := t.accuracyRecord.Evidence()
	switch t.accuracyRecord.Rating() {
	case accuracy.Overpredicted:
		return &engine.Warning{
			Code: engine.WarnMispredict,
			Detail: fmt.Sprintf("of %d prompt tokens that its last %d requests were predicted to find in its cache they found %d",
				predicted*t.blockSize, accuracy.Window, found*t.blockSize),
			Remedy: "the router believes in blocks that the engine does not use: compare the engine's block size and the namespaces of its cache with the card's, and see this worker's feed for lost events",
		}
	case accuracy.Unpredicted:
		return &engine.Warning{
			Code: engine.WarnMispredict,
			Detail: fmt.Sprintf("its last %d requests that found anything in its cache found %d prompt tokens, and none was predicted",
				accuracy.Window, found*t.blockSize),
			Remedy: "the engine reuses blocks of which the router hears nothing, or under other hashes: turn on the engine's cache events, and compare its block size, adapters and cache salts with what requests carry",
		}
	}
	return nil
}

// accuracyRow is the JSON of how accurate the predictions for one worker are.
type accuracyRow struct {
	Requests  uint64 `json:"requests"` // with a report
	Predicted uint64 `json:"predicted_cached_tokens"`
	Reported  uint64 `json:"reported_cached_tokens"`
	Verdict   string `json:"verdict"` // open, fair, over or blind: see core/accuracy
}

// accuracyReport is the state of one record.
type accuracyReport struct {
	row     accuracyRow
	warning *engine.Warning
}

// accuracyReports returns the state of all records.
func (p *predictions) accuracyReports() map[kv.Worker]accuracyReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[kv.Worker]accuracyReport, len(p.mu.tried))
	for w, t := range p.mu.tried { // the order does not matter
		all[w] = accuracyReport{accuracyRow{t.requests, t.predicted, t.reported, t.accuracyRecord.Rating().String()}, t.mispredictWarning()}
	}
	return all
}

// logVerdict logs that the verdict on a worker's predictions has changed.
func (r *Router) logVerdict(w kv.Worker) {
	t, ok := r.predictions.accuracyReports()[w]
	switch {
	case !ok: // it has been removed meanwhile
	case t.warning != nil:
		r.throttle.Log(context.Background(), slog.LevelWarn, "what is believed of a worker's cache does not come true",
			"worker", uint64(w.ID), "rank", w.Rank, "detail", t.warning.Detail, "remedy", t.warning.Remedy)
	default:
		r.log.Info("what is believed of a worker's cache comes true", "worker", uint64(w.ID), "rank", w.Rank)
	}
}

// workerRoom bounds the bytes of /metrics for the predictions about workers, and also for the warnings
// about them; workerLine estimates one line of either.
const workerRoom, workerLine = 64 << 10, 110

// accuracyMetrics compare predictions with reports of the workers that exist; they are read on
// collection.
type accuracyMetrics struct {
	r                   *Router
	predicted, reported *prometheus.Desc
}

var _ prometheus.Collector = (*accuracyMetrics)(nil)

func newAccuracyMetrics(r *Router) *accuracyMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_router_worker_"+name, help, []string{"worker", "dp_rank"}, nil)
	}
	return &accuracyMetrics{
		r:         r,
		predicted: desc("predicted_cached_tokens_total", "Prompt tokens which the router predicted in the worker's cache, over the requests for which the worker reported cached tokens."),
		reported:  desc("reported_cached_tokens_total", "Prompt tokens which the worker reported as cached, over the same requests."),
	}
}

// Describe implements prometheus.Collector.
func (m *accuracyMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.predicted
	ch <- m.reported
}

// Collect implements prometheus.Collector.
func (m *accuracyMetrics) Collect(ch chan<- prometheus.Metric) {
	trials := m.r.predictions.accuracyReports()
	workers := slices.SortedFunc(maps.Keys(trials), kv.Worker.Compare)
	var other [2]uint64
	show := func(worker, rank string, predicted, reported uint64) {
		ch <- prometheus.MustNewConstMetric(m.predicted, prometheus.CounterValue, float64(predicted), worker, rank)
		ch <- prometheus.MustNewConstMetric(m.reported, prometheus.CounterValue, float64(reported), worker, rank)
	}
	fit := obs.LimitRows(workerRoom, workers, func(kv.Worker) int { return 2 * workerLine }, func(w kv.Worker) {
		other[0] += trials[w].row.Predicted
		other[1] += trials[w].row.Reported
	})
	for _, w := range fit {
		show(strconv.FormatUint(uint64(w.ID), 10), strconv.FormatUint(uint64(w.Rank), 10), trials[w].row.Predicted, trials[w].row.Reported)
	}
	if len(fit) < len(trials) {
		show(obs.Other, "", other[0], other[1])
	}
}
