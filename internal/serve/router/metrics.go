package router

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/holders"
	"penstock/internal/obs"
)

// decisionStage is a part of a decision.
type decisionStage int

const (
	stageHash  decisionStage = iota // of the prompt, without the lock
	stageLock                       // waiting for the lock
	stageMatch                      // looking the prompt up
	stagePick                       // choosing and reserving
	stages
)

var stageNames = [stages]string{"hash", "lock", "match", "pick"}

// routerMetrics are the router's instruments, resolved once, so that decisions and records do no label
// lookups.
type routerMetrics struct {
	stages    [stages]prometheus.Observer
	overlap   prometheus.Observer
	predicted prometheus.Counter
	cached    prometheus.Counter
	missed    prometheus.Counter
	unseen    prometheus.Counter
	decisions *prometheus.CounterVec
	leaked    prometheus.Counter
	waits     [waitOutcomes]prometheus.Observer
	pings     [pingOutcomes]prometheus.Counter
	calls     *prometheus.CounterVec

	events    [kv.Moved + 1][kvfeed.Stale + 1]prometheus.Counter
	refused   [kv.Moved + 1]prometheus.Counter
	missing   prometheus.Counter // requests for missing events
	whole     prometheus.Counter // requests for whole caches
	malformed prometheus.Counter
	snapshots snapshotMetrics
}

func newMetrics(m *obs.Metrics, r *Router) routerMetrics {
	decision := m.Histogram("router_decision_seconds", "Time of a decision by stage.", prometheus.ExponentialBuckets(1e-6, 4, 10), "stage")
	events := m.Counter("index_events_total", "Cache events received, by kind and what became of them.", "kind", "outcome")
	rm := routerMetrics{
		overlap:   m.Histogram("router_overlap_blocks", "Blocks of the prompt that the chosen worker is believed to hold.", []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}).WithLabelValues(),
		predicted: m.Counter("router_predicted_cached_tokens_total", "Prompt tokens believed to be in the chosen worker's cache.").WithLabelValues(),
		cached:    m.Counter("router_reported_cached_tokens_total", "Prompt tokens that workers reported to have had in their caches.").WithLabelValues(),
		missed:    m.Counter("router_overpredicted_cached_tokens_total", "Prompt tokens believed to be in the chosen worker's cache, of which it reported that they were not.").WithLabelValues(),
		unseen:    m.Counter("router_underpredicted_cached_tokens_total", "Prompt tokens which the chosen worker reported as cached, and which the router had not predicted.").WithLabelValues(),
		decisions: m.Counter("router_decisions_total", "Decisions by how they ended.", "outcome"),
		leaked:    m.Counter("router_reservations_expired_total", "Reservations that were neither freed nor renewed in their time; anything but 0 is a defect.").WithLabelValues(),
		calls:     m.Counter("router_failed_calls_total", "Calls to workers that failed or were refused, by code.", "code"),
		malformed: m.Counter("feed_malformed_total", "Messages of workers that could not be read.").WithLabelValues(),
	}
	rm.snapshots = newSnapshotMetrics(m, r)
	resyncs := m.Counter("feed_resyncs_total", "Times a worker was asked for what is missing of its events, or for all of its cache.", "wanted")
	rm.missing, rm.whole = resyncs.WithLabelValues("missing"), resyncs.WithLabelValues("all")
	waits := m.Histogram("router_queue_wait_seconds", "Time that requests waited in the router for a worker with less to do, by how it ended.", prometheus.ExponentialBuckets(1e-3, 4, 10), "outcome")
	for o, name := range waitOutcomeNames {
		rm.waits[o] = waits.WithLabelValues(name)
	}
	pings := m.Counter("router_pings_total", "Pings to workers by outcome.", "outcome")
	for o, name := range pingOutcomeNames {
		rm.pings[o] = pings.WithLabelValues(name)
	}
	for s, name := range stageNames {
		rm.stages[s] = decision.WithLabelValues(name)
	}
	for k := kv.Stored; k <= kv.Moved; k++ {
		for o := kvfeed.Apply; o <= kvfeed.Stale; o++ {
			rm.events[k][o] = events.WithLabelValues(k.String(), o.String())
		}
		rm.refused[k] = events.WithLabelValues(k.String(), outcomeRefused)
	}
	m.RegisterCollector(newFeedMetrics(r))
	m.RegisterCollector(holders.NewCollector(r.embeddings))
	m.RegisterCollector(newReplicaMetrics(r))
	m.RegisterCollector(newAccuracyMetrics(r))
	m.RegisterCollector(newWarningMetrics(r))
	m.RegisterCollector(newTTFTMetrics(r))
	m.RegisterCollector(&stateMetrics{
		r:      r,
		silent: prometheus.NewDesc(obs.Namespace+"_router_quarantined_workers", "Workers that do not answer, to which nothing is sent.", nil, nil),
		blocks: prometheus.NewDesc(obs.Namespace+"_index_blocks", "Distinct prefixes in the index.", nil, nil),
		bytes:  prometheus.NewDesc(obs.Namespace+"_index_bytes", "Memory of the index, as allocations are rounded.", nil, nil),
		queued: prometheus.NewDesc(obs.Namespace+"_router_queue_requests", "Requests that wait in the router for a worker with less to do.", nil, nil),
		tokens: prometheus.NewDesc(obs.Namespace+"_router_queue_tokens", "Prompt tokens that they have.", nil, nil),
		ready:  prometheus.NewDesc(obs.Namespace+"_router_ready_workers", "Workers of a model to which a request could be sent now; at 0 the model cannot be served.", []string{"model"}, nil),
	})
	return rm
}

func (m *routerMetrics) observeStage(s decisionStage, took time.Duration) {
	m.stages[s].Observe(took.Seconds())
}

func (m *routerMetrics) countDecision(d *route.Decision) {
	m.decisions.WithLabelValues("ok").Inc()
	m.overlap.Observe(float64(d.OverlapBlocks))
	m.predicted.Add(float64(d.OverlapBlocks * d.BlockSize))
}

// countReport compares the cached tokens that a worker reported for one prompt with the predicted ones.
func (m *routerMetrics) countReport(predicted, cached int) {
	m.cached.Add(float64(cached))
	m.missed.Add(float64(max(predicted-cached, 0)))
	m.unseen.Add(float64(max(cached-predicted, 0)))
}

func (m *routerMetrics) countFailure(err error) {
	m.decisions.WithLabelValues(fault.CodeOf(err).String()).Inc()
}

// countRecord counts the events of a record that was judged.
func (m *routerMetrics) countRecord(rec *kvfeed.Record, v kvfeed.FeedVerdict) {
	for i, ev := range rec.Events {
		outcome := v.Outcome
		if outcome == kvfeed.Apply && i < v.Skip {
			outcome = kvfeed.Duplicate
		}
		m.events[ev.Kind][outcome].Inc()
	}
}

// countRequest counts a request to a worker.
func (m *routerMetrics) countRequest(q kvfeed.ResyncRequest) {
	if q.From > 0 {
		m.missing.Inc()
		return
	}
	m.whole.Inc()
}

// countRefusedRecord counts the events of a record that is not used at all.
func (m *routerMetrics) countRefusedRecord(rec *kvfeed.Record) {
	for _, ev := range rec.Events {
		m.refused[ev.Kind].Inc()
	}
}

// stateMetrics are read on collection.
type stateMetrics struct {
	r                     *Router
	silent, blocks, bytes *prometheus.Desc
	queued, tokens, ready *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s *stateMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- s.silent
	ch <- s.blocks
	ch <- s.bytes
	ch <- s.queued
	ch <- s.tokens
	ch <- s.ready
}

// Collect implements prometheus.Collector.
func (s *stateMetrics) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(s.silent, prometheus.GaugeValue, float64(s.r.countQuarantined()))
	st := s.r.cache.indexStats()
	ch <- prometheus.MustNewConstMetric(s.blocks, prometheus.GaugeValue, float64(st.Blocks))
	ch <- prometheus.MustNewConstMetric(s.bytes, prometheus.GaugeValue, float64(st.Bytes))
	requests, tokens := s.r.queueTotals()
	ch <- prometheus.MustNewConstMetric(s.queued, prometheus.GaugeValue, float64(requests))
	ch <- prometheus.MustNewConstMetric(s.tokens, prometheus.GaugeValue, float64(tokens))
	for _, m := range s.r.Models() {
		if m.Parent == "" { // adapters change often, and there may be many
			ch <- prometheus.MustNewConstMetric(s.ready, prometheus.GaugeValue, float64(m.Ready), m.ID)
		}
	}
}

// waitOutcome is the outcome of a wait in the queue.
type waitOutcome int

const (
	waitPlaced waitOutcome = iota
	waitRefused
	waitAbandoned // the client disconnected, or the deadline passed
	waitOutcomes
)

var waitOutcomeNames = [waitOutcomes]string{"placed", "refused", "abandoned"}

func (m *routerMetrics) observeWait(o waitOutcome, since time.Time) {
	m.waits[o].Observe(time.Since(since).Seconds())
}
