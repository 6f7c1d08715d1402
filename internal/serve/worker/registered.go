package worker

import (
	"errors"

	"penstock/core/fault"
)

// ErrReplaced is the error of Run when another process has registered with the worker's id. A caller
// that restarted the worker would replace the other process in turn, without end.
var ErrReplaced = errors.New("another process has registered with the same id and replaced it")

// replacedError returns the error of a worker whose registration another process has replaced.
func (w *Worker) replacedError() error {
	return fault.New(fault.Conflict, "worker %d: %w; two processes cannot share an id: start this one with another --worker-id, or without one, and not on the --data-dir of the other", w.cfg.ID, ErrReplaced)
}

// RegisteredAddr returns the address that the worker has registered in discovery; false before that. It
// remains until the worker drains.
func (w *Worker) RegisteredAddr() (addr string, ok bool) {
	at := w.registered.Load()
	if at == nil {
		return "", false
	}
	return *at, true
}
