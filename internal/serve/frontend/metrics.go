package frontend

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/edge/keys"
	"penstock/internal/obs"
)

type metrics struct {
	requests   *prometheus.CounterVec   // model, endpoint, status
	firstToken *prometheus.HistogramVec // model
	interToken *prometheus.HistogramVec // model
	duration   *prometheus.HistogramVec // model, endpoint
	inflight   prometheus.Gauge
	waiting    prometheus.Gauge
	prompt     *prometheus.CounterVec // model
	output     *prometheus.CounterVec // model
	cached     *prometheus.CounterVec // model
	migrations *prometheus.CounterVec // kind
	rejections *prometheus.CounterVec // reason

	media          *prometheus.CounterVec   // model, kind
	textOnly       *prometheus.CounterVec   // model, reason
	mediaResolve   *prometheus.HistogramVec // outcome
	mediaPredicted *prometheus.CounterVec   // model
	mediaReported  *prometheus.CounterVec   // model
	mediaMismatch  *prometheus.CounterVec   // model
	mediaShipped   *prometheus.CounterVec   // model
	mediaUnshipped *prometheus.CounterVec   // model
}

func newMetrics(m *obs.Metrics, ring *keys.Ring) *metrics {
	m.Collect(&keyMetrics{ring: ring})
	return &metrics{
		requests: m.Counter("frontend_requests_total",
			"Generation, tokenize and detokenize requests by the status of their outcome; 499 is a client that went away.", "model", "endpoint", "status"),
		firstToken: m.Histogram("frontend_time_to_first_token_seconds",
			"Time from a request's arrival to the first token of each of its prompts.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}, "model"),
		interToken: m.Histogram("frontend_inter_token_latency_seconds",
			"Time between tokens of one choice.",
			[]float64{.0005, .001, .0025, .005, .01, .02, .03, .05, .075, .1, .25, .5, 1, 5}, "model"),
		duration: m.Histogram("frontend_request_duration_seconds",
			"Time from a request's arrival to the end of its answer.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}, "model", "endpoint"),
		inflight: m.Gauge("frontend_inflight",
			"Generation, tokenize and detokenize requests being served.").WithLabelValues(),
		waiting: m.Gauge("frontend_waiting",
			"Prompts that lost their worker and wait for another.").WithLabelValues(),
		prompt: m.Counter("frontend_prompt_tokens_total",
			"Prompt tokens of requests that got tokens, finished or not.", "model"),
		output: m.Counter("frontend_output_tokens_total",
			"Tokens that came from workers, also for requests that did not finish.", "model"),
		cached: m.Counter("frontend_cached_tokens_total",
			"Prompt tokens that engines served from their caches.", "model"),
		migrations: m.Counter("frontend_migrations_total",
			"Further attempts after a worker failed: before the first token (new_request), after it (ongoing_request), or when a prompt was to be made (preprocess).", "kind"),
		rejections: m.Counter("frontend_rejections_total",
			"Requests refused at the door.", "reason"),
		media: m.Counter("frontend_media_total",
			"Media objects of requests by kind.", "model", "kind"),
		textOnly: m.Counter("frontend_routing_text_only_total",
			"Requests whose media took no part in the choice of a worker, by reason.", "model", "reason"),
		mediaResolve: m.Histogram("frontend_media_resolve_seconds",
			"Time in which it was found out what the media of a request are, by outcome: resolved, unresolved (the request goes by its text) or refused.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "outcome"),
		mediaPredicted: m.Counter("frontend_media_predicted_tokens_total",
			"Prompt tokens of requests with media, counted here, where the engine counted them too.", "model"),
		mediaReported: m.Counter("frontend_media_reported_tokens_total",
			"Prompt tokens of the same requests as their engines counted them.", "model"),
		mediaMismatch: m.Counter("frontend_media_mismatch_total",
			"Requests with media whose prompt tokens an engine counted otherwise.", "model"),
		mediaShipped: m.Counter("frontend_media_shipped_total",
			"Requests that went to an engine with what the processor of one of the model's engines had made of their media.", "model"),
		mediaUnshipped: m.Counter("frontend_media_unshipped_total",
			"Those of them that the engine did not take so, which were passed on as their clients sent them.", "model"),
	}
}
