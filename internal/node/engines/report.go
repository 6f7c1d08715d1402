package engines

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/obs"
)

// collector reports the remote engines as their adapters see them; it collects at each scrape. Counters
// restart when an engine is reopened.
type collector struct {
	// engines is nil if no engine is remote: then nothing is collected.
	engines *Supervisor
	up      *prometheus.Desc
	counts  []adapterMetric
}

// adapterMetric is one metric of an adapter.
type adapterMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*remote.Stats) uint64
}

var _ prometheus.Collector = (*collector)(nil)

// NewCollector returns the metrics of a supervisor's engines; of nil, only their descriptions.
func NewCollector(of *Supervisor) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(obs.Namespace+"_engine_"+name, help, append([]string{"engine"}, labels...), nil)
	}
	m := &collector{engines: of, up: desc("up", "Whether an engine that another program runs serves and answers: 1 or 0.")}
	add := func(kind prometheus.ValueType, name, help string, of func(*remote.Stats) uint64) {
		m.counts = append(m.counts, adapterMetric{desc(name, help, "worker"), kind, of})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	add(counter, "calls_total", "Requests sent to the engine.", func(s *remote.Stats) uint64 { return s.Calls })
	add(counter, "outages_total", "Times at which the engine stopped answering.", func(s *remote.Stats) uint64 { return s.Downs })
	add(counter, "scrapes_failed_total", "Readings of the engine's metrics that failed.", func(s *remote.Stats) uint64 { return s.ScrapeFailures })
	add(counter, "predicted_cached_tokens_total", "Cached tokens that the adapter expected, over the requests of which the engine reported some number.", func(s *remote.Stats) uint64 { return s.Predicted })
	add(counter, "reported_cached_tokens_total", "Cached tokens that the engine reported, over the same requests.", func(s *remote.Stats) uint64 { return s.Reported })
	add(counter, "compared_requests_total", "Requests for which both the expected and the reported number of cached tokens are known.", func(s *remote.Stats) uint64 { return s.Compared })
	add(counter, "mispredicted_requests_total", "Compared requests whose two numbers differ by more than a block.", func(s *remote.Stats) uint64 { return s.Mismatched })
	add(gauge, "known_blocks", "Blocks which the engine has cached, by its events or by prediction.", func(s *remote.Stats) uint64 { return uint64(max(s.Blocks, 0)) })
	add(gauge, "feed_connected", "Whether the engine's events are subscribed to: 1 or 0.", func(s *remote.Stats) uint64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	add(counter, "feed_batches_total", "Batches of events applied.", func(s *remote.Stats) uint64 { return s.Batches })
	add(counter, "feed_repeated_total", "Batches that the engine repeated when asked.", func(s *remote.Stats) uint64 { return s.Repeated })
	add(counter, "feed_gaps_total", "Losses in the engine's feed.", func(s *remote.Stats) uint64 { return s.Gaps })
	add(counter, "feed_unrepaired_total", "Losses that could not be made good: what was cached before is unknown.", func(s *remote.Stats) uint64 { return s.Unrepaired })
	add(counter, "feed_orphans_total", "Blocks that the engine stored behind one that is not known.", func(s *remote.Stats) uint64 { return s.Orphans })
	add(gauge, "feed_orphans_waiting", "Those of them that wait until a request shows which block is before them.", func(s *remote.Stats) uint64 { return uint64(s.Waiting) })
	add(gauge, "inferred_blocks", "Known blocks of which no event told, but the cached tokens of requests.", func(s *remote.Stats) uint64 { return uint64(s.Inferred) })
	add(counter, "feed_restarts_total", "Restarts of the engine that its feed showed.", func(s *remote.Stats) uint64 { return s.Restarts })
	add(counter, "feed_unreadable_total", "Batches that could not be read.", func(s *remote.Stats) uint64 { return s.Unreadable })
	return m
}

// Describe implements prometheus.Collector.
func (m *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.up
	for _, c := range m.counts {
		ch <- c.desc
	}
}

// Collect implements prometheus.Collector.
func (m *collector) Collect(ch chan<- prometheus.Metric) {
	if m.engines == nil {
		return
	}
	for _, e := range m.engines.all {
		up, name := 0.0, e.spec.String()
		if e.fullStatus().State == StateServing {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, up, name)
		for _, w := range e.currentWorkers() {
			s, ok := StatsOf(w.engine)
			if !ok {
				continue
			}
			id := strconv.FormatUint(uint64(w.id), 10)
			for _, c := range m.counts {
				ch <- prometheus.MustNewConstMetric(c.desc, c.kind, float64(c.read(&s)), name, id)
			}
		}
	}
}

// StatsOf returns an adapter's counters.
func StatsOf(e engine.Engine) (remote.Stats, bool) {
	if src, ok := e.(interface{ Stats() remote.Stats }); ok {
		return src.Stats(), true
	}
	return remote.Stats{}, false
}

// warnLook is the interval at which an engine's warnings are read for the log.
const warnLook = 2 * time.Second

// watchWarnings logs each warning of an engine once when it appears, and once when it is resolved, until ctx
// ends.
func watchWarnings(ctx context.Context, e engine.Engine, log *slog.Logger) {
	if _, ok := e.(engine.WarningSource); !ok {
		return
	}
	tick := time.NewTicker(warnLook)
	defer tick.Stop()
	said := loggedWarnings{}
	for {
		said.logChanges(engine.WarningsOf(e), log)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// loggedWarnings are the codes of the warnings in the log. A changed detail is not logged again: it may
// contain a counter.
type loggedWarnings map[string]bool

func (said loggedWarnings) logChanges(now []engine.Warning, log *slog.Logger) {
	have := map[string]bool{}
	for _, w := range now {
		if !said[w.Code] {
			log.Warn(w.Detail, "code", w.Code, "remedy", w.Remedy)
		}
		have[w.Code], said[w.Code] = true, true
	}
	for code := range said {
		if !have[code] {
			delete(said, code)
			log.Info("what was wrong with the engine is over", "code", code)
		}
	}
}
