package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/media/fetch"
	"penstock/internal/media/shm"
	"penstock/internal/obs"
)

// mediaMetrics reports media files and shared memory; it collects at each scrape.
type mediaMetrics struct {
	fetcher *fetch.Fetcher // nil if none are fetched
	lender  *shm.Lender    // nil without shared memory

	asked, hits, bytes, segments, lent *prometheus.Desc
}

var _ prometheus.Collector = (*mediaMetrics)(nil)

func newMediaMetrics(fetcher *fetch.Fetcher, lender *shm.Lender) *mediaMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_media_"+name, help, labels, nil)
	}
	return &mediaMetrics{
		fetcher: fetcher, lender: lender,
		asked:    desc("lookups_total", "Sizes and files of media that were asked for by URL.", "what"),
		hits:     desc("hits_total", "Sizes and files of media that were known or there already when they were asked for.", "what"),
		bytes:    desc("file_bytes", "Memory of files of media: being fetched, in use, or kept for the next request."),
		segments: desc("lent_segments", "Segments of shared memory with decoded media that requests have on loan."),
		lent:     desc("lent_bytes", "Bytes of shared memory with decoded media that requests have on loan."),
	}
}

// Describe implements prometheus.Collector.
func (m *mediaMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.asked, m.hits, m.bytes, m.segments, m.lent} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *mediaMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.fetcher != nil {
		s := m.fetcher.Stats()
		for _, c := range []struct {
			what        string
			asked, hits uint64
		}{{"size", s.Sizes, s.SizeHits}, {"file", s.Files, s.FileHits}} {
			ch <- prometheus.MustNewConstMetric(m.asked, prometheus.CounterValue, float64(c.asked), c.what)
			ch <- prometheus.MustNewConstMetric(m.hits, prometheus.CounterValue, float64(c.hits), c.what)
		}
		ch <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, float64(s.Bytes))
	}
	if m.lender != nil {
		segments, bytes := m.lender.Usage()
		ch <- prometheus.MustNewConstMetric(m.segments, prometheus.GaugeValue, float64(segments))
		ch <- prometheus.MustNewConstMetric(m.lent, prometheus.GaugeValue, float64(bytes))
	}
}
