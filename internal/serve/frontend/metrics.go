package frontend

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/edge/keys"
	"penstock/internal/obs"
)

// modelRoom bounds the bytes of /metrics for the series of models and their adapters.
const modelRoom = 320 << 10

type metrics struct {
	models  *obs.Group[*modelMetrics]
	unknown *modelMetrics // of requests that failed before their model was found

	inflight     prometheus.Gauge
	waiting      prometheus.Gauge
	migrations   *prometheus.CounterVec   // kind
	rejections   *prometheus.CounterVec   // reason
	mediaResolve *prometheus.HistogramVec // outcome
}

// modelMetrics are the metrics of one model. An adapter has its own counters, and shares the histograms
// of its base model.
type modelMetrics struct {
	set *obs.Set

	requests   *obs.Vec[prometheus.Counter] // endpoint, status
	firstToken *obs.Vec[prometheus.Observer]
	interToken *obs.Vec[prometheus.Observer]
	duration   *obs.Vec[prometheus.Observer] // endpoint
	prompt     *obs.Vec[prometheus.Counter]
	output     *obs.Vec[prometheus.Counter]
	cached     *obs.Vec[prometheus.Counter]

	media          *obs.Vec[prometheus.Counter] // kind
	textOnly       *obs.Vec[prometheus.Counter] // reason
	mediaPredicted *obs.Vec[prometheus.Counter]
	mediaReported  *obs.Vec[prometheus.Counter]
	mediaMismatch  *obs.Vec[prometheus.Counter]
	mediaShipped   *obs.Vec[prometheus.Counter]
	mediaUnshipped *obs.Vec[prometheus.Counter]
}

func newMetrics(m *obs.Metrics, ring *keys.Ring) *metrics {
	m.Collect(&keyMetrics{ring: ring})
	models := obs.NewGroup(m, "model", modelRoom, newModelMetrics)
	return &metrics{
		models: models, unknown: models.Add(""),
		inflight: m.Gauge("frontend_inflight",
			"Generation, tokenize and detokenize requests being served.").WithLabelValues(),
		waiting: m.Gauge("frontend_waiting",
			"Prompts that lost their worker and wait for another.").WithLabelValues(),
		migrations: m.Counter("frontend_migrations_total",
			"Further attempts after a worker failed: before the first token (new_request), after it (ongoing_request), or when a prompt was to be made (preprocess).", "kind"),
		rejections: m.Counter("frontend_rejections_total",
			"Requests refused at the door.", "reason"),
		mediaResolve: m.Histogram("frontend_media_resolve_seconds",
			"Time in which it was found out what the media of a request are, by outcome: resolved, unresolved (the request goes by its text) or refused.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "outcome"),
	}
}

func newModelMetrics(m *obs.Set) *modelMetrics {
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
		mediaShipped: m.Counter("frontend_media_shipped_total",
			"Requests that went to an engine with what the processor of one of the model's engines had made of their media."),
		mediaUnshipped: m.Counter("frontend_media_unshipped_total",
			"Those of them that the engine did not take so, which were passed on as their clients sent them."),
	}
}

// followModels updates the series for a snapshot which replaces old: series of served models stay,
// series of models without workers stay while there is room, and the rest are deleted.
func (m *metrics) follow(next, old *snapshot) {
	served := func(in *model) bool { return in != nil && len(in.workers) > 0 }
	for _, in := range old.models {
		name := in.card.Name
		now := next.same(in)
		switch {
		case old.names[name] != in: // another model has the name now
		case now == nil:
			m.models.Remove(name)
		case served(in) && !served(now):
			m.models.Retire(name)
		}
	}
	for _, parts := range []bool{false, true} { // models before their adapters
		for _, in := range next.models {
			if (in.adapter != "") == parts {
				in.metrics = m.of(in, old, next)
			}
		}
	}
}

// metricsOf returns the instruments of a model of a snapshot.
func (m *metrics) of(in *model, old, next *snapshot) *modelMetrics {
	was := old.same(in)
	switch {
	case next.names[in.card.Name] != in:
		return m.models.Of(obs.Other)
	case was != nil && (len(was.workers) > 0 || len(in.workers) == 0):
		return was.metrics
	case in.adapter != "" && next.names[in.parent] != nil:
		return m.models.AddPart(in.card.Name, next.names[in.parent].metrics.set)
	}
	return m.models.Add(in.card.Name)
}
