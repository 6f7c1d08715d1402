package frontend

import (
	"net/http"
	"sync"
	"sync/atomic"
)

// gate counts the handlers inside so that the end can wait for them, and lets
// none in after that: a server that is closed may still start one. Once the
// frontend is leaving, no connection outlives the answer that began after that.
type gate struct {
	inner   http.Handler
	leaving *atomic.Bool
	inside  sync.WaitGroup
	mu      struct {
		sync.Mutex
		closed bool
	}
}

// ServeHTTP passes the request on while the gate is open. Behind a closed gate
// the connection is gone already, so there is nobody to answer.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.enter() {
		return
	}
	defer g.inside.Done()
	if g.leaving.Load() {
		w.Header().Set("Connection", "close")
	}
	g.inner.ServeHTTP(w, r)
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

// close lets nobody in any more and waits until nobody is inside.
func (g *gate) close() {
	g.mu.Lock()
	g.mu.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}
