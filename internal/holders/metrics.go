package holders

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kvfeed"
	"penstock/internal/obs"
)

// Collector reads the figures of a Directory on collection.
type Collector struct {
	of *Directory

	entries, holdings, displaced, feeds, gaps, healed, malformed *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns the metrics of x. A process can have one. Without x there are none.
func NewCollector(x *Directory) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_embedding_"+name, help, labels, nil)
	}
	return &Collector{
		of:        x,
		entries:   desc("index_entries", "Entries of embedding caches that some worker is known to hold."),
		holdings:  desc("index_holdings", "Pairs of such an entry and a worker that holds it."),
		displaced: desc("index_displaced_total", "Pairs that were forgotten because the index was full."),
		feeds:     desc("feed_workers", "Feeds of embedding caches by state.", "state"),
		gaps:      desc("feed_gaps_total", "Losses in the feeds of embedding caches."),
		healed:    desc("feed_repairs_total", "Ends of what these losses began, by how they ended.", "outcome"),
		malformed: desc("feed_malformed_total", "Records of embedding caches that could not be read."),
	}
}

// Describe implements prometheus.Collector.
func (m *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{m.entries, m.holdings, m.displaced, m.feeds, m.gaps, m.healed, m.malformed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Collector) Collect(ch chan<- prometheus.Metric) {
	if m.of == nil {
		return
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	s := m.of.Stats()
	send(m.entries, prometheus.GaugeValue, float64(s.Keys))
	send(m.holdings, prometheus.GaugeValue, float64(s.Holdings))
	send(m.displaced, prometheus.CounterValue, float64(s.Displaced))
	for state := kvfeed.Resyncing; state <= kvfeed.Live; state++ {
		send(m.feeds, prometheus.GaugeValue, float64(s.States[state]), state.String())
	}
	send(m.gaps, prometheus.CounterValue, float64(s.Gaps))
	send(m.healed, prometheus.CounterValue, float64(s.Repaired), "repaired")
	send(m.healed, prometheus.CounterValue, float64(s.Described), "described")
	send(m.healed, prometheus.CounterValue, float64(s.GivenUp), "given_up")
	send(m.malformed, prometheus.CounterValue, float64(s.Malformed))
}
