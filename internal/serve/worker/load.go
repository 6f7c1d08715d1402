package worker

import (
	"context"
	"log/slog"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// publishLoad publishes the load when it changed since the last look, and at
// longer intervals anyway, until ctx ends. Reports are gossip: one that cannot
// be published is left out.
func (w *Worker) publishLoad(ctx context.Context, s *server) error {
	topic := bus.Load(w.cfg.Namespace)
	key := engine.WorkerKey(kv.Worker{ID: w.cfg.ID})
	tick := time.NewTicker(w.cfg.LoadInterval)
	defer tick.Stop()
	var last engine.LoadReport
	var said time.Time
	for {
		if r := s.report(); r != last || time.Since(said) >= w.cfg.LoadRefresh {
			w.metrics.loaded(r.Load)
			b, err := engine.EncodeLoadReport(r)
			if err == nil {
				err = w.planes.Bus.Publish(ctx, topic, key, b)
			}
			if err != nil && ctx.Err() == nil {
				w.throttle.Log(ctx, slog.LevelWarn, "cannot publish load", "error", err)
			}
			last, said = r, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
