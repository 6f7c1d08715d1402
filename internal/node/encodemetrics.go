package node

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/encode"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// encodeMetrics reports the jobs and the memory of the media encoders of engine tiny; it collects at each scrape.
type encodeMetrics struct {
	stats func() []engine.EncodeStats

	requests, objects, memory, budget, inFlight, capacity             *prometheus.Desc
	seconds, runs, batched, repeats, bytes, failures, hits, evictions *prometheus.Desc
}

var _ prometheus.Collector = (*encodeMetrics)(nil)

// newEncodeMetrics returns the metrics of machines: the sums, and the load of each encoder.
func newEncodeMetrics(stats func() []engine.EncodeStats) *encodeMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_encode_"+name, help, labels, nil)
	}
	return &encodeMetrics{
		stats:     stats,
		requests:  desc("requests", "Requests with media by state: encoding, ready (all rows are there) or active (their tokens are being computed, or were).", "state"),
		objects:   desc("objects", "Images, videos and sounds by state: queued, running or completed (their rows wait for the model).", "state"),
		memory:    desc("memory_bytes", "Bytes of rows in memory, by kind: cpu (made and not read, or being made) or staging (the model reads them).", "memory"),
		budget:    desc("memory_budget_bytes", "Largest value of penstock_encode_memory_bytes.", "memory"),
		inFlight:  desc("encoder_objects", "Objects which an encoder has; encoder 0 are other workers which are asked.", "pool", "encoder"),
		capacity:  desc("encoder_capacity", "Objects which an encoder may have at once.", "pool", "encoder"),
		seconds:   desc("seconds_total", "Time of the runs of encoders that made rows, each counted once whatever its batch."),
		runs:      desc("batches_total", "Runs of encoders, of one object or several."),
		batched:   desc("batched_objects_total", "Objects in the runs of encoders; by penstock_encode_batches_total it is the mean size of a batch."),
		repeats:   desc("repeats_total", "Objects which an encoder was given again, because their batch failed or the encoder was lost."),
		bytes:     desc("bytes_total", "Bytes of the rows that encoders made."),
		failures:  desc("failures_total", "Objects without rows by kind of failure: corrupt, out_of_memory, deadline, encoder_lost, size_differs, encoder_failed or unreachable.", "kind"),
		hits:      desc("cache_hits_total", "Objects that needed no encoder: the embedding cache had their rows, or they were kept for the next turn."),
		evictions: desc("evictions_total", "Objects whose rows were kept for the next turn and made room for others."),
	}
}

// Describe implements prometheus.Collector.
func (m *encodeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.requests, m.objects, m.memory, m.budget, m.inFlight, m.capacity, m.seconds, m.runs, m.batched, m.repeats, m.bytes, m.failures, m.hits, m.evictions,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *encodeMetrics) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	pools := m.stats()
	if len(pools) == 0 {
		return
	}
	var failures [encode.Unreachable + 1]uint64
	sum := map[*prometheus.Desc]float64{}
	gauges := map[*prometheus.Desc]map[string]float64{m.requests: {}, m.objects: {}, m.memory: {}, m.budget: {}}
	for pool, s := range pools {
		for _, e := range s.Encoders {
			labels := []string{strconv.Itoa(pool), strconv.FormatUint(uint64(e.Encoder), 10)}
			send(m.inFlight, prometheus.GaugeValue, float64(e.InFlight), labels...)
			send(m.capacity, prometheus.GaugeValue, float64(e.Capacity), labels...)
		}
		for _, g := range []struct {
			of    *prometheus.Desc
			label string
			value float64
		}{
			{m.requests, "encoding", float64(s.EncodingRequests)},
			{m.requests, "ready", float64(s.ReadyRequests)},
			{m.requests, "active", float64(s.ActiveRequests)},
			{m.objects, "queued", float64(s.QueuedObjects)},
			{m.objects, "running", float64(s.RunningObjects)},
			{m.objects, "completed", float64(s.CompletedObjects)},
			{m.memory, "cpu", float64(s.CPUBytes)},
			{m.memory, "staging", float64(s.StagingBytes)},
			{m.budget, "cpu", float64(s.CPUBudget)},
			{m.budget, "staging", float64(s.StagingBudget)},
		} {
			gauges[g.of][g.label] += g.value
		}
		sum[m.seconds] += s.EncodeTime.Seconds()
		sum[m.runs] += float64(s.Runs)
		sum[m.batched] += float64(s.Jobs + s.Repeats)
		sum[m.repeats] += float64(s.Repeats)
		sum[m.bytes] += float64(s.EncodedBytes)
		sum[m.hits] += float64(s.CacheHits)
		sum[m.evictions] += float64(s.Evictions)
		for k := range failures {
			failures[k] += s.Failures[k]
		}
	}
	for of, values := range gauges {
		for label, v := range values {
			send(of, prometheus.GaugeValue, v, label)
		}
	}
	for of, v := range sum {
		send(of, prometheus.CounterValue, v)
	}
	for k := encode.Corrupt; k <= encode.Unreachable; k++ {
		send(m.failures, prometheus.CounterValue, float64(failures[k]), engine.FailureName(k))
	}
}
