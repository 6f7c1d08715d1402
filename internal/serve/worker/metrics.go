package worker

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// metricsRoom bounds the bytes of /metrics for the series of workers, loadRoom those for their load.
const (
	metricsRoom = 160 << 10
	loadRoom    = 64 << 10
)

// Metrics are the instruments of all workers of a process, distinguished by the label "worker".
type Metrics struct {
	workers *obs.MetricGroup[workerVecs]
	loads   *loadCollector
}

// NewMetrics creates the instruments; once per registry.
func NewMetrics(m *obs.Metrics) *Metrics {
	l := newLoadCollector()
	m.RegisterCollector(l)
	return &Metrics{workers: obs.NewGroup(m, "worker", metricsRoom, newWorkerVecs), loads: l}
}

// workerVecs are one worker's metrics, and workerMetrics its instruments.
type workerVecs struct {
	requests, canaries     *obs.InstrumentVec[prometheus.Counter] // outcome
	prompt, cached, output *obs.InstrumentVec[prometheus.Counter]
	stalled                *obs.InstrumentVec[prometheus.Counter]
	inFlight, ready        *obs.InstrumentVec[prometheus.Gauge]
	duration               *obs.InstrumentVec[prometheus.Observer]
	kvFeed, embeddingFeed  feedVecs
	computed               *obs.InstrumentVec[prometheus.Counter]
	remote, local, bytes   *obs.InstrumentVec[prometheus.Counter] // reason, reason, side
	failures               *obs.InstrumentVec[prometheus.Counter] // reason
	prefillers, queueDepth *obs.InstrumentVec[prometheus.Gauge]
	deadJobs               *obs.InstrumentVec[prometheus.Gauge]
	stages                 *obs.InstrumentVec[prometheus.Observer] // stage
}

// feedVecs are the metrics of one of a worker's feeds, and feedMetrics its instruments.
type feedVecs struct {
	events, watches                   *obs.InstrumentVec[prometheus.Counter] // kind, reason
	records, failedPublishes, repeats *obs.InstrumentVec[prometheus.Counter]
	publishing                        *obs.InstrumentVec[prometheus.Gauge]
}

// feedMetrics is explained at feedVecs.
type feedMetrics struct {
	events, watches                   *obs.InstrumentVec[prometheus.Counter]
	records, failedPublishes, repeats prometheus.Counter
	publishing                        prometheus.Gauge
}

// newFeedVecs creates the metrics worker_<name>_…; cache says in their help which cache it is.
func newFeedVecs(m *obs.InstrumentSet, name, cache string) feedVecs {
	name = "worker_" + name
	return feedVecs{
		events:          m.Counter(name+"_events_total", "Events of the "+cache+" published.", "kind"),
		records:         m.Counter(name+"_records_total", "Records of events of the "+cache+" published."),
		failedPublishes: m.Counter(name+"_publish_failures_total", "Attempts to publish a record of the "+cache+" that failed and were repeated."),
		repeats:         m.Counter(name+"_repeated_records_total", "Records of the "+cache+" published once more for routers that missed them."),
		publishing:      m.Gauge(name+"_publishing", "1 while the worker publishes events of its "+cache+"; 0 if its engine has none, or no router wants them."),
		watches:         m.Counter(name+"_restarts_total", "Times the "+cache+" was described again, by reason.", "reason"),
	}
}

func (v *feedVecs) instruments() *feedMetrics {
	return &feedMetrics{
		events: v.events, watches: v.watches, records: v.records.WithLabelValues(), failedPublishes: v.failedPublishes.WithLabelValues(),
		repeats: v.repeats.WithLabelValues(), publishing: v.publishing.WithLabelValues(),
	}
}

func (m *feedMetrics) countRepeat() {
	if m != nil {
		m.repeats.Inc()
	}
}

func (m *feedMetrics) countFailure() {
	if m != nil {
		m.failedPublishes.Inc()
	}
}

// countWatch counts a description of the cache after the first one, by reason.
func (m *feedMetrics) countWatch(reason string) {
	if m != nil {
		m.watches.WithLabelValues(reason).Inc()
	}
}

func (m *feedMetrics) setPublishing(v float64) {
	if m != nil {
		m.publishing.Set(v)
	}
}

// workerMetrics is explained at workerVecs.
type workerMetrics struct {
	requests, canaries     *obs.InstrumentVec[prometheus.Counter]
	prompt, cached, output prometheus.Counter
	stalled                prometheus.Counter
	inFlight, ready        prometheus.Gauge
	duration               prometheus.Observer
	kvFeed                 *feedMetrics
	// embeddingFeed has no series before they are asked for: few workers have an embedding cache.
	embeddingFeed *feedVecs
	loads         *loadCollector
	computed      prometheus.Counter
	// handoffs has no series before they are asked for: few workers exchange blocks.
	handoffs *workerVecs
}

// The sides of a transfer of blocks, as labels.
const (
	sideReceived = "received"
	sideSent     = "sent"
)

// CountHandoff implements ExchangeObserver.
func (m *workerMetrics) CountHandoff(remote bool, reason string, bytes int64) {
	if !remote {
		m.handoffs.local.WithLabelValues(reason).Inc()
		return
	}
	m.handoffs.remote.WithLabelValues(reason).Inc()
	m.handoffs.bytes.WithLabelValues(sideReceived).Add(float64(bytes))
}

// ObserveStage implements ExchangeObserver.
func (m *workerMetrics) ObserveStage(stage string, took time.Duration) {
	m.handoffs.stages.WithLabelValues(stage).Observe(took.Seconds())
}

// CountFailedPrefill implements ExchangeObserver.
func (m *workerMetrics) CountFailedPrefill(reason string) {
	m.handoffs.failures.WithLabelValues(reason).Inc()
}

// CountPrefilled implements ExchangeObserver.
func (m *workerMetrics) CountPrefilled(computed int, bytes int64) {
	m.computed.Add(float64(computed))
	m.handoffs.bytes.WithLabelValues(sideSent).Add(float64(bytes))
}

// SetPrefillers implements ExchangeObserver.
func (m *workerMetrics) SetPrefillers(workers, jobs, dead int) {
	m.handoffs.prefillers.WithLabelValues().Set(float64(workers))
	m.handoffs.queueDepth.WithLabelValues().Set(float64(jobs))
	m.handoffs.deadJobs.WithLabelValues().Set(float64(dead))
}

func newWorkerVecs(m *obs.InstrumentSet) workerVecs {
	return workerVecs{
		requests: m.Counter("worker_requests_total", "Calls (generations, embeddings, prompts made, media encoded) by how they ended; client_closed_request is a call that its caller ended: the client went away, or a stop string was found.", "outcome"),
		prompt:   m.Counter("worker_prompt_tokens_total", "Prompt tokens of the calls served."),
		cached:   m.Counter("worker_cached_tokens_total", "Prompt tokens served from cache."),
		output:   m.Counter("worker_output_tokens_total", "Tokens generated."),
		inFlight: m.Gauge("worker_inflight", "Calls being served."),
		duration: m.Histogram("worker_request_duration_seconds", "Time from call to last frame.", prometheus.ExponentialBuckets(0.005, 2, 16)),
		canaries: m.Counter("worker_canaries_total", "Times that an engine was asked for a token because it was silent, by how it ended.", "outcome"),
		stalled:  m.Counter("streams_stalled_total", "Streams that were ended because nothing came of them while their engine worked, so that another worker goes on."),
		kvFeed:   newFeedVecs(m, "kv", "KV cache"), embeddingFeed: newFeedVecs(m, "embedding", "embedding cache"),
		computed:   m.Counter("worker_computed_prompt_tokens_total", "Tokens of prompts, and of answers which another worker had begun, which the worker's engine computed, for its own requests and for other workers: neither cached nor received."),
		remote:     m.Counter("prefill_remote_total", "Requests of a decode worker whose prompt a prefill worker computed, by the reason.", "reason"),
		local:      m.Counter("prefill_local_total", "Requests of a decode worker whose prompt it computed itself, by the reason.", "reason"),
		failures:   m.Counter("prefill_failures_total", "Attempts of a decode worker to have a prompt computed by a prefill worker which were given up, by the reason: also if a later attempt of the same request did not fail.", "reason"),
		bytes:      m.Counter("prefill_bytes_total", "Bytes of KV blocks which a decode worker received, or a prefill worker sent.", "side"),
		stages:     m.Histogram("prefill_stage_seconds", "Time between the end of a prefill elsewhere and the first token of its decode worker, by stage: send (until the first bytes are ready), transfer, import (into the cache), first_token.", prometheus.ExponentialBuckets(0.0001, 2, 20), "stage"),
		prefillers: m.Gauge("prefill_workers", "Prefill workers whose blocks a decode worker can take."),
		queueDepth: m.Gauge("prefill_queue_depth", "Jobs which wait for a prefill worker, as far as the worker knows."),
		deadJobs:   m.Gauge("prefill_dead_jobs", "Dead letters of the queue of prefill jobs: they had all attempts. Looked at every ten seconds."),
		ready:      m.Gauge("worker_ready", "1, or 0 while the engine does not answer, as its canary or it itself says."),
	}
}

// addWorker returns the instruments of a worker. Its series exist until removeWorker.
func (m *Metrics) addWorker(id kv.WorkerID) workerMetrics {
	v := m.workers.AddMember(formatID(id))
	return workerMetrics{
		computed: v.computed.WithLabelValues(), handoffs: &v,
		requests: v.requests, canaries: v.canaries,
		prompt: v.prompt.WithLabelValues(), cached: v.cached.WithLabelValues(), output: v.output.WithLabelValues(),
		stalled:  v.stalled.WithLabelValues(),
		inFlight: v.inFlight.WithLabelValues(), ready: v.ready.WithLabelValues(), duration: v.duration.WithLabelValues(),
		kvFeed: v.kvFeed.instruments(), embeddingFeed: &v.embeddingFeed,
		loads: m.loads,
	}
}

// removeWorker deletes the series of a worker.
func (m *Metrics) removeWorker(id kv.WorkerID) { m.workers.Remove(formatID(id)) }

func formatID(id kv.WorkerID) string { return strconv.FormatUint(uint64(id), 10) }

// setReady sets the ready gauge from the worker's reported state.
func (m *workerMetrics) setReady(state string) {
	if state == engine.StateNotReady {
		m.ready.Set(0)
		return
	}
	m.ready.Set(1)
}

func (m *workerMetrics) countRefused(err error) { m.requests.WithLabelValues(outcomeOf(err)).Inc() }

func (m *workerMetrics) observeCall(prompt int, cached, output int64, took time.Duration, err error) {
	m.requests.WithLabelValues(outcomeOf(err)).Inc()
	m.prompt.Add(float64(prompt))
	m.cached.Add(float64(cached))
	m.output.Add(float64(output))
	m.duration.Observe(took.Seconds())
}
