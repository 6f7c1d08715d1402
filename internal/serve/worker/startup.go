package worker

import "context"

// startingEngine is an engine that takes time to start, during which it does not answer.
type startingEngine interface {
	// Started is closed when the engine answers; nil means that it always does.
	Started() <-chan struct{}
}

// awaitStarted waits until the engine has started, and reports whether it has; it has not if ctx ended
// before.
func (w *Worker) awaitStarted(ctx context.Context) bool {
	s, ok := w.eng.(startingEngine)
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
