package worker

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// Metrics are the instruments of all workers of a process, told apart by the
// label "worker".
type Metrics struct {
	requests, prompt, cached, output    *prometheus.CounterVec
	events, publishes, retries, watches *prometheus.CounterVec
	canaries, repeats, stalled          *prometheus.CounterVec
	inFlight, ready                     *prometheus.GaugeVec
	loads                               *loads
	duration                            *prometheus.HistogramVec
}

// NewMetrics creates the instruments; once per registry.
func NewMetrics(m *obs.Metrics) *Metrics {
	l := newLoads()
	m.Collect(l)
	return &Metrics{
		requests:  m.Counter("worker_requests_total", "Calls (generations, embeddings, prompts made) by how they ended; client_closed_request is a call that its caller ended: the client went away, or a stop string was found.", "worker", "outcome"),
		prompt:    m.Counter("worker_prompt_tokens_total", "Prompt tokens of the calls served.", "worker"),
		cached:    m.Counter("worker_cached_tokens_total", "Prompt tokens served from cache.", "worker"),
		output:    m.Counter("worker_output_tokens_total", "Tokens generated.", "worker"),
		inFlight:  m.Gauge("worker_inflight", "Calls being served.", "worker"),
		duration:  m.Histogram("worker_request_duration_seconds", "Time from call to last frame.", prometheus.ExponentialBuckets(0.005, 2, 16), "worker"),
		events:    m.Counter("worker_kv_events_total", "Cache events published.", "worker", "kind"),
		publishes: m.Counter("worker_kv_records_total", "Records of cache events published.", "worker"),
		retries:   m.Counter("worker_kv_publish_failures_total", "Attempts to publish a record that failed and were repeated.", "worker"),
		repeats:   m.Counter("worker_kv_repeated_records_total", "Records published once more for routers that missed them.", "worker"),
		watches:   m.Counter("worker_kv_restarts_total", "Times the cache was described again, by reason.", "worker", "reason"),
		canaries:  m.Counter("worker_canaries_total", "Times that an engine was asked for a token because it was silent, by how it ended.", "worker", "outcome"),
		stalled:   m.Counter("streams_stalled_total", "Streams that were ended because nothing came of them while their engine worked, so that another worker goes on.", "worker"),
		ready:     m.Gauge("worker_ready", "1, or 0 while the engine does not answer, as its canary or it itself says.", "worker"),
		loads:     l,
	}
}

// workerMetrics are one worker's.
type workerMetrics struct {
	requests, events, watches, canaries  *prometheus.CounterVec
	prompt, cached, output, records, bad prometheus.Counter
	repeats, stalled                     prometheus.Counter
	inFlight, ready                      prometheus.Gauge
	duration                             prometheus.Observer
	loads                                *loads
}

func (m *Metrics) of(id kv.WorkerID) workerMetrics {
	worker := prometheus.Labels{"worker": strconv.FormatUint(uint64(id), 10)}
	return workerMetrics{
		requests: m.requests.MustCurryWith(worker), events: m.events.MustCurryWith(worker), watches: m.watches.MustCurryWith(worker),
		canaries: m.canaries.MustCurryWith(worker), ready: m.ready.With(worker),
		prompt: m.prompt.With(worker), cached: m.cached.With(worker), output: m.output.With(worker),
		records: m.publishes.With(worker), bad: m.retries.With(worker), repeats: m.repeats.With(worker), stalled: m.stalled.With(worker),
		inFlight: m.inFlight.With(worker), duration: m.duration.With(worker), loads: m.loads,
	}
}

// answers shows whether the engine does, by the state that the worker reports.
func (m *workerMetrics) answers(state string) {
	if state == engine.StateNotReady {
		m.ready.Set(0)
		return
	}
	m.ready.Set(1)
}

// published counts the events of a record.
func (m *workerMetrics) published(events []kv.Event) {
	var kinds [kv.Moved + 1]int
	for i := range events {
		kinds[events[i].Kind]++
	}
	for kind, n := range kinds {
		if n > 0 {
			m.events.WithLabelValues(kv.EventKind(kind).String()).Add(float64(n))
		}
	}
}

func (m *workerMetrics) refused(err error) { m.requests.WithLabelValues(outcome(err)).Inc() }

func (m *workerMetrics) finished(prompt int, cached, output int64, took time.Duration, err error) {
	m.requests.WithLabelValues(outcome(err)).Inc()
	m.prompt.Add(float64(prompt))
	m.cached.Add(float64(cached))
	m.output.Add(float64(output))
	m.duration.Observe(took.Seconds())
}
