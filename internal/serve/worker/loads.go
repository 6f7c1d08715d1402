package worker

import (
	"maps"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// loads is the metric of the engines' load: asked for when somebody looks, so that
// what a request held is seen to be free as soon as it is.
type loads struct {
	desc *prometheus.Desc
	mu   struct {
		sync.Mutex
		of map[kv.WorkerID]func() engine.Load // of the workers that run
	}
}

var _ prometheus.Collector = (*loads)(nil)

func newLoads() *loads {
	l := &loads{desc: prometheus.NewDesc(obs.Namespace+"_worker_load", "The engine's load by quantity.", []string{"worker", "quantity"}, nil)}
	l.mu.of = map[kv.WorkerID]func() engine.Load{}
	return l
}

// watch has the load of a worker shown until the function that it returns is
// called.
func (l *loads) watch(id kv.WorkerID, load func() engine.Load) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.of[id] = load
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.mu.of, id)
	}
}

// Describe implements prometheus.Collector.
func (l *loads) Describe(out chan<- *prometheus.Desc) { out <- l.desc }

// Collect implements prometheus.Collector.
func (l *loads) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	of := maps.Clone(l.mu.of)
	l.mu.Unlock()
	for id, ask := range of {
		worker, load := strconv.FormatUint(uint64(id), 10), ask()
		for _, q := range [...]struct {
			name string
			v    int
		}{
			{"running", load.Running},
			{"waiting", load.Waiting},
			{"used_blocks", load.UsedBlocks},
			{"cached_blocks", load.CachedBlocks},
			{"total_blocks", load.TotalBlocks},
			{"prefill_tokens", load.PrefillTokens},
		} {
			out <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(q.v), worker, q.name)
		}
	}
}
