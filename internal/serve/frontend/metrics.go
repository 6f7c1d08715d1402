package frontend

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/catalog"
	"penstock/internal/edge/keys"
	"penstock/internal/obs"
)

// modelRoom bounds the bytes of /metrics for the series of models and their adapters.
const modelRoom = 320 << 10

type metrics struct {
	models  *obs.MetricGroup[*modelMetrics]
	unknown *modelMetrics // of requests that failed before their model was found

	inflight     prometheus.Gauge
	waiting      prometheus.Gauge
	migrations   *prometheus.CounterVec   // kind
	legs         *prometheus.CounterVec   // outcome
	rejections   *prometheus.CounterVec   // reason
	mediaResolve *prometheus.HistogramVec // outcome
}

// modelMetrics are the metrics of one model. An adapter has its own counters, and shares the histograms
// of its base model.
type modelMetrics struct {
	set *obs.InstrumentSet

	requests   *obs.InstrumentVec[prometheus.Counter] // endpoint, status
	firstToken *obs.InstrumentVec[prometheus.Observer]
	interToken *obs.InstrumentVec[prometheus.Observer]
	duration   *obs.InstrumentVec[prometheus.Observer] // endpoint
	prompt     *obs.InstrumentVec[prometheus.Counter]
	output     *obs.InstrumentVec[prometheus.Counter]
	cached     *obs.InstrumentVec[prometheus.Counter]

	media          *obs.InstrumentVec[prometheus.Counter] // kind
	textOnly       *obs.InstrumentVec[prometheus.Counter] // reason
	mediaPredicted *obs.InstrumentVec[prometheus.Counter]
	mediaReported  *obs.InstrumentVec[prometheus.Counter]
	mediaMismatch  *obs.InstrumentVec[prometheus.Counter]
	mediaDropped   *obs.InstrumentVec[prometheus.Counter] // kind
	mediaHalved    *obs.InstrumentVec[prometheus.Counter]
	mediaShipped   *obs.InstrumentVec[prometheus.Counter]
	mediaUnshipped *obs.InstrumentVec[prometheus.Counter]
}

func newMetrics(m *obs.Metrics, ring *keys.Keyring) *metrics {
	m.RegisterCollector(&keyMetrics{ring: ring})
	models := obs.NewGroup(m, "model", modelRoom, newModelMetrics)
	return &metrics{
		models: models, unknown: models.AddMember(""),
		inflight: m.Gauge("frontend_inflight",
			"Generation, tokenize and detokenize requests being served.").WithLabelValues(),
		waiting: m.Gauge("frontend_waiting",
			"Prompts that lost their worker and wait for another.").WithLabelValues(),
		migrations: m.Counter("frontend_migrations_total",
			"Further attempts after a worker failed: before the first token (new_request), after it (ongoing_request), or when a prompt was to be made (preprocess).", "kind"),
		legs: m.Counter("frontend_legs_total",
			"Attempts of requests whose engines move KV blocks themselves, by outcome: remote (a prefill worker computed the prompt), decode_worker_lost, or why the decode worker computed it.", "outcome"),
		rejections: m.Counter("frontend_rejections_total",
			"Requests refused before a worker was chosen.", "reason"),
		mediaResolve: m.Histogram("frontend_media_resolve_seconds",
			"Time in which it was found out what the media of a request are, by outcome: resolved, unresolved (the request goes by its text) or refused.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "outcome"),
	}
}

func newModelMetrics(m *obs.InstrumentSet) *modelMetrics {
	return &modelMetrics{
		set: m,
		requests: m.Counter("frontend_requests_total",
			"Generation, tokenize and detokenize requests by the status of their outcome; 499 is a client that went away.", "endpoint", "status"),
		firstToken: m.Histogram("frontend_time_to_first_token_seconds",
			"Time from a request's arrival to the first token of each of its prompts.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}),
		interToken: m.Histogram("frontend_inter_token_latency_seconds",
			"Time between tokens of one choice.",
			[]float64{.0005, .001, .0025, .005, .01, .02, .03, .05, .075, .1, .25, .5, 1, 5}),
		duration: m.Histogram("frontend_request_duration_seconds",
			"Time from a request's arrival to the end of its answer.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}, "endpoint"),
		prompt: m.Counter("frontend_prompt_tokens_total",
			"Prompt tokens of requests that got tokens, finished or not."),
		output: m.Counter("frontend_output_tokens_total",
			"Tokens that came from workers, also for requests that did not finish."),
		cached: m.Counter("frontend_cached_tokens_total",
			"Prompt tokens that engines served from their caches."),
		media: m.Counter("frontend_media_total",
			"Media objects of requests by kind.", "kind"),
		textOnly: m.Counter("frontend_routing_text_only_total",
			"Requests whose media took no part in the choice of a worker, by reason.", "reason"),
		mediaPredicted: m.Counter("frontend_media_predicted_tokens_total",
			"Prompt tokens of requests with media, counted here, where the engine counted them too."),
		mediaReported: m.Counter("frontend_media_reported_tokens_total",
			"Prompt tokens of the same requests as their engines counted them."),
		mediaMismatch: m.Counter("frontend_media_mismatch_total",
			"Requests with media whose prompt tokens an engine counted otherwise."),
		mediaDropped: m.Counter("frontend_media_dropped_total",
			"Media objects without which requests were served, by the kind of their failure.", "kind"),
		mediaHalved: m.Counter("frontend_media_halved_total",
			"Times that a media object was halved because it was too large for an encoder."),
		mediaShipped: m.Counter("frontend_media_shipped_total",
			"Requests that went to an engine with what the processor of one of the model's engines had made of their media."),
		mediaUnshipped: m.Counter("frontend_media_unshipped_total",
			"Those of them that the engine did not take so, which were passed on as their clients sent them."),
	}
}

// followModels updates the series for a snapshot which replaces old: series of served models stay,
// series of models without workers stay while there is room, and the rest are deleted.
func (m *metrics) followModels(next, old *catalogSnapshot) {
	for _, in := range old.Models {
		switch now := next.Same(in); {
		case now == nil:
			m.models.Remove(in.Card.Name)
		case len(in.Workers) > 0 && len(now.Workers) == 0:
			m.models.Retire(in.Card.Name)
		}
	}
	for _, adapters := range []bool{false, true} { // models before their adapters
		for _, in := range next.Models {
			if (in.Parent != "") == adapters {
				next.served[in].metrics = m.metricsOf(in, old, next)
			}
		}
	}
}

// metricsOf returns the instruments of a model of a snapshot.
func (m *metrics) metricsOf(in *catalog.Model, old, next *catalogSnapshot) *modelMetrics {
	was, parent := old.Same(in), next.model(in.Parent)
	switch {
	case was != nil && (len(was.Workers) > 0 || len(in.Workers) == 0):
		return old.served[was].metrics
	case in.Parent != "" && parent != nil:
		return m.models.AddPart(in.Card.Name, parent.metrics.set)
	}
	return m.models.AddMember(in.Card.Name)
}
