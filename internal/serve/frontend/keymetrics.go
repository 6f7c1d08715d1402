package frontend

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/limit"
	"penstock/internal/edge/keys"
	"penstock/internal/obs"
)

// The metrics of keys. They have series only for the keys in force, so that a file that changes often
// leaves none behind.
var (
	keyRequests = keyDesc("frontend_key_requests_total", "Requests to models that were let in, by the name of their key.")
	keyRefused  = keyDesc("frontend_key_refused_total", "Requests to models that were over a limit of their key.", "limit")
	keyTokens   = keyDesc("frontend_key_tokens_total", "Tokens of requests by the name of their key: of prompts as they are made, of output when a request ends.", "kind")
	keyInflight = keyDesc("frontend_key_inflight", "Requests to models being served, by the name of their key.")
)

func keyDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(obs.Namespace+"_"+name, help, append([]string{"key"}, labels...), nil)
}

// keyRoom bounds the bytes of /metrics for the series of keys.
const keyRoom = 128 << 10

// keyMetrics reads the usage of keys.
type keyMetrics struct{ ring *keys.Keyring } // nil without keys

var _ prometheus.Collector = (*keyMetrics)(nil)

// Describe implements prometheus.Collector.
func (k *keyMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{keyRequests, keyRefused, keyTokens, keyInflight} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (k *keyMetrics) Collect(out chan<- prometheus.Metric) {
	if k.ring == nil {
		return
	}
	for _, r := range k.usageRows() {
		count := func(d *prometheus.Desc, n uint64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{r.name}, labels...)...)
		}
		count(keyRequests, r.u.Requests)
		for _, over := range [...]limit.LimitKind{limit.Requests, limit.Tokens, limit.Inflight} {
			count(keyRefused, r.u.Refused[over], over.String())
		}
		count(keyTokens, r.u.Prompt, "prompt")
		count(keyTokens, r.u.Output, "output")
		out <- prometheus.MustNewConstMetric(keyInflight, prometheus.GaugeValue, float64(r.u.Inflight), r.name)
	}
}

// keyRow is the usage of one key.
type keyRow struct {
	name string
	u    keys.Usage
}

// usageRows returns the usage of the keys, by name. Keys beyond keyRoom are one row at the end.
func (k *keyMetrics) usageRows() []keyRow {
	var rows []keyRow // so that nothing waits under the ring's lock
	k.ring.EachUsage(func(name string, u keys.Usage) { rows = append(rows, keyRow{name, u}) })
	slices.SortFunc(rows, func(a, b keyRow) int { return strings.Compare(a.name, b.name) })
	const lines, width = 7, len(`penstock_frontend_key_refused_total{key="",limit="requests_per_minute"} 1.234567890123e+12`)
	rest := keyRow{name: obs.Other}
	all := len(rows)
	rows = obs.LimitRows(keyRoom, rows, func(r keyRow) int {
		if r.name == obs.Other {
			return keyRoom + 1 // it is counted in the row of that name
		}
		return lines * (width + len(r.name))
	}, func(r keyRow) { rest.u.Add(r.u) })
	if len(rows) == all {
		return rows
	}
	return append(rows, rest)
}
