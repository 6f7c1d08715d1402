package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/obs"
)

// metrics are the relay's instruments.
type metrics struct {
	migrations *prometheus.CounterVec
	waiting    prometheus.Gauge
}

func newMetrics(m *obs.Metrics) metrics {
	return metrics{
		migrations: m.Counter("relay_migrations_total", "Further attempts of a router process after a worker failed: before the first token (new_request), after it (ongoing_request), or when a prompt was to be made (preprocess).", "kind"),
		waiting:    m.Gauge("relay_waiting", "Requests in a router process that have no worker and wait for one.").WithLabelValues(),
	}
}
