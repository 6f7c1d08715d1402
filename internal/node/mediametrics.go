package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/media/fetch"
	"penstock/internal/obs"
	"penstock/internal/serve/bulk"
)

// mediaMetrics reports media files and what is lent; it collects at each scrape.
type mediaMetrics struct {
	fetcher *fetch.Fetcher // nil if none are fetched
	lender  *bulk.Lender

	asked, hits, bytes, objects, lent *prometheus.Desc
}

var _ prometheus.Collector = (*mediaMetrics)(nil)

func newMediaMetrics(fetcher *fetch.Fetcher, lender *bulk.Lender) *mediaMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_media_"+name, help, labels, nil)
	}
	return &mediaMetrics{
		fetcher: fetcher, lender: lender,
		asked:   desc("lookups_total", "Sizes and files of media that were asked for by URL.", "what"),
		hits:    desc("hits_total", "Sizes and files of media that were known or there already when they were asked for.", "what"),
		bytes:   desc("file_bytes", "Memory of files of media: being fetched, in use, or kept for the next request."),
		objects: desc("lent_objects", "Decoded media, and outputs of media processors, which are lent to workers while their requests last."),
		lent:    desc("lent_bytes", "Bytes of what penstock_media_lent_objects counts."),
	}
}

// Describe implements prometheus.Collector.
func (m *mediaMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.asked, m.hits, m.bytes, m.objects, m.lent} {
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
	objects, bytes := m.lender.Usage()
	ch <- prometheus.MustNewConstMetric(m.objects, prometheus.GaugeValue, float64(objects))
	ch <- prometheus.MustNewConstMetric(m.lent, prometheus.GaugeValue, float64(bytes))
}
