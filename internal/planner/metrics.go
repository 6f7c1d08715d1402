package planner

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/obs"
)

// plannerMetrics are a planner's own metrics.
type plannerMetrics struct {
	intervals    *prometheus.CounterVec // outcome
	samples      *prometheus.CounterVec // outcome
	decisions    prometheus.Counter
	failures     prometheus.Counter
	workers      *prometheus.GaugeVec // role, number
	accelerators prometheus.Gauge
	expected     prometheus.Gauge
}

func newMetrics(m *obs.Metrics) *plannerMetrics {
	return &plannerMetrics{
		intervals:    m.Counter("plan_intervals_total", "Intervals for which a planner decided, by outcome: planned, or held (metrics or workers were not known).", "outcome"),
		samples:      m.Counter("plan_samples_total", "Looks of a planner at arrivals between two intervals, by outcome: raised (they ordered more workers), kept, or unknown (metrics were missing or frozen).", "outcome"),
		decisions:    m.Counter("plan_decisions_total", "Decisions of a planner which changed how many workers are to exist.").WithLabelValues(),
		failures:     m.Counter("plan_apply_failures_total", "Times that a planner's connector could not be told a decision.").WithLabelValues(),
		workers:      m.Gauge("plan_workers", "Workers of a role in the last plan, by number: desired (the targets need them), feasible (limits permit them), actual (they serve) or order (they are to exist).", "role", "number"),
		accelerators: m.Gauge("plan_accelerators", "Accelerators which the workers of all roles take at most until the next interval.").WithLabelValues(),
		expected:     m.Gauge("plan_expected_requests_per_second", "Requests a second which a planner expects while an ordered worker starts.").WithLabelValues(),
	}
}

// showReport sets the metrics to a report.
func (m *plannerMetrics) showReport(r *PlanReport) {
	switch {
	case r.Sampled:
		m.samples.WithLabelValues("raised").Inc()
	case r.Hold != "":
		m.intervals.WithLabelValues("held").Inc()
	default:
		m.intervals.WithLabelValues("planned").Inc()
	}
	m.accelerators.Set(float64(r.Accelerators))
	m.expected.Set(r.Forecast.Expected)
	for i := range r.Roles {
		role := &r.Roles[i]
		for number, n := range map[string]int{"desired": role.Desired, "feasible": role.Feasible, "actual": role.Actual, "order": role.Order} {
			m.workers.WithLabelValues(role.Role.String(), number).Set(float64(n))
		}
	}
}
