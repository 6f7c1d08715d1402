package routerproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/obs"
)

// metrics are the proxy's instruments.
type metrics struct {
	migrations *prometheus.CounterVec
	legs       *prometheus.CounterVec // outcome
	waiting    prometheus.Gauge
	media      *prometheus.HistogramVec // outcome
}

func newMetrics(m *obs.Metrics) metrics {
	return metrics{
		migrations: m.Counter("router_process_migrations_total", "Further attempts of a router process after a worker failed: before the first token (new_request), after it (ongoing_request), or when a prompt was to be made (preprocess).", "kind"),
		legs: m.Counter("router_process_legs_total",
			"Attempts of a router process at requests whose engines move KV blocks themselves, by outcome: remote (a prefill worker computed the prompt), decode_worker_lost, or why the decode worker computed it.", "outcome"),
		waiting: m.Gauge("router_process_waiting", "Requests in a router process that have no worker and wait for one.").WithLabelValues(),
		media: m.Histogram("router_process_media_resolve_seconds",
			"Time in which a router process found out what the media of a conversation are, by outcome: resolved, unresolved (the request goes by its text) or refused.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "outcome"),
	}
}
