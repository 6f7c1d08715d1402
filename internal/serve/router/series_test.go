package router

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// TestSeriesOfWorkers: the series of any number of workers, and of all their warnings, stay within
// workerRoom, and are removed with them.
func TestSeriesOfWorkers(t *testing.T) {
	metrics := obs.NewMetrics()
	r := serving(t, Config{}, metrics)
	const n = 2000
	var list []disco.Instance
	for i := range n {
		in := instance(t, "m", 4)
		in.ID = kv.WorkerID(1<<52 + i)
		list = append(list, in)
	}
	r.setInstances(list)
	for i, m := range r.mu.members {
		r.predictions.mu.Lock()
		r.predictions.recordLocked(m.worker).predicted += 2
		r.predictions.mu.Unlock()
		m.reported, m.loadAt = true, r.now()
		for j := range 8 {
			m.load.Warnings = append(m.load.Warnings, engine.Warning{Code: fmt.Sprintf("%064d", i*8+j)})
		}
	}
	sums := func() (size int, predicted, warnings int) {
		rec := httptest.NewRecorder()
		metrics.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		for line := range strings.Lines(rec.Body.String()) {
			var v int
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v)
			switch {
			case strings.HasPrefix(line, "penstock_router_worker_predicted"):
				predicted += v
			case strings.HasPrefix(line, "penstock_router_worker_warnings"):
				warnings += v
			}
		}
		return rec.Body.Len(), predicted, warnings
	}
	if size, predicted, warnings := sums(); size > 2*workerRoom+50<<10 || predicted != 2*n || warnings != 8*n {
		t.Errorf("%d bytes are scraped, with %d predicted tokens and %d warnings of %d workers", size, predicted, warnings, n)
	}
	r.setInstances(nil)
	if size, predicted, warnings := sums(); size > 50<<10 || predicted != 0 || warnings != 0 {
		t.Errorf("of no worker %d bytes are scraped, with %d predicted tokens and %d warnings", size, predicted, warnings)
	}
}
