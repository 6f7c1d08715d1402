package frontend

import (
	"net/http"
	"sync"
	"sync/atomic"
)

// requestGate counts the running handlers so that close can wait for them, and rejects new ones after
// that: a closed server may still start one. Once the frontend is leaving, each answer that starts
// closes its connection.
type requestGate struct {
	inner   http.Handler
	leaving *atomic.Bool
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		closed bool
	}
}

// ServeHTTP passes the request on while the gate is open. After close the connection is already closed,
// so there is no answer.
func (g *requestGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.enter() {
		return
	}
	defer g.running.Done()
	if g.leaving.Load() {
		w.Header().Set("Connection", "close")
	}
	g.inner.ServeHTTP(w, r)
}

func (g *requestGate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		return false
	}
	g.running.Add(1)
	return true
}

// close rejects new requests and waits for the running ones.
func (g *requestGate) close() {
	g.mu.Lock()
	g.mu.closed = true
	g.mu.Unlock()
	g.running.Wait()
}
