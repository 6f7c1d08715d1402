package worker

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// announceTimeout bounds the wait for a report that must be published first.
const announceTimeout = time.Second

// publishLoadNow publishes the load now and waits, at most announceTimeout, until it is published.
func (s *callServer) publishLoadNow(ctx context.Context) {
	late := time.NewTimer(announceTimeout)
	defer late.Stop()
	out := make(chan struct{}, 1)
	select {
	case s.loadWaiters <- out:
	case <-late.C:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-out:
	case <-late.C:
	case <-ctx.Done():
	}
}

// wakeLoadPublisher makes the publisher publish the load now, without waiting for it.
func (s *callServer) wakeLoadPublisher() {
	select {
	case s.loadWake <- struct{}{}:
	default:
	}
}

// publishLoad publishes the load when it changed since the last check, and every LoadRefresh, until ctx
// ends. A changed state wakes it at once. A report that cannot be published is dropped, because later
// ones replace it.
func (w *Worker) publishLoad(ctx context.Context, s *callServer) error {
	defer w.metrics.loads.addWorker(w.cfg.ID, s.loadReport)()
	topic := bus.LoadTopic(w.cfg.Namespace)
	key := engine.WorkerKey(kv.Worker{ID: w.cfg.ID})
	tick := time.NewTicker(w.cfg.LoadInterval)
	defer tick.Stop()
	var last engine.LoadReport
	var said time.Time
	var waiting chan<- struct{}
	for {
		if r := s.loadReport(); !reflect.DeepEqual(r, last) || time.Since(said) >= w.cfg.LoadRefresh {
			w.metrics.setReady(r.State)
			b, err := engine.EncodeLoadReport(r)
			if err == nil {
				err = w.planes.Bus.Publish(ctx, topic, key, b)
			}
			if err != nil && ctx.Err() == nil {
				w.throttle.Log(ctx, slog.LevelWarn, "cannot publish load", "error", err)
			}
			last, said = r, time.Now()
		}
		if waiting != nil {
			waiting <- struct{}{} // it has room
			waiting = nil
		}
		select {
		case <-tick.C:
		case <-s.loadWake:
		case waiting = <-s.loadWaiters:
		case <-ctx.Done():
			return nil
		}
	}
}
