package worker

// Registered returns the address that the worker has entered in discovery; false
// before it has. It stays there until the worker drains.
func (w *Worker) Registered() (addr string, ok bool) {
	at := w.registered.Load()
	if at == nil {
		return "", false
	}
	return *at, true
}
