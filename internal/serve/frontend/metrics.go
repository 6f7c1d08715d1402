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
	}
}
