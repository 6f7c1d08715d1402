package worker

import "context"

// starter is an engine that takes time to start, in which it answers nobody.
type starter interface {
	// Started is closed when the engine answers; nil is that it does from the first.
	Started() <-chan struct{}
}

// upAndRunning waits until the engine answers, if it takes time for that, and
// reports whether it does; not if ctx ended before.
func (w *Worker) upAndRunning(ctx context.Context) bool {
	s, ok := w.eng.(starter)
	if !ok || s.Started() == nil {
		return true
	}
	select {
	case <-s.Started():
		return true
	case <-ctx.Done():
		return false
	}
}
