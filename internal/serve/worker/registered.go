package worker

import (
	"errors"

	"penstock/core/fault"
)

// ErrReplaced is what Run ends with when another process has registered with the
// worker's id. A caller that started the worker again would replace the other one
// in turn, without end.
var ErrReplaced = errors.New("another process has registered with the same id and replaced it")

// replaced returns the error of a worker whose registration is another's.
func (w *Worker) replaced() error {
	return fault.New(fault.Conflict, "worker %d: %w; two processes cannot share an id: start this one with another --worker-id, or without one, and not on the --data-dir of the other", w.cfg.ID, ErrReplaced)
}

// Registered returns the address that the worker has entered in discovery; false
// before it has. It stays there until the worker drains.
func (w *Worker) Registered() (addr string, ok bool) {
	at := w.registered.Load()
	if at == nil {
		return "", false
	}
	return *at, true
}
