package enginemock

import (
	"encoding/json"
	"io"
	"net/http"
)

// getFaults serves the fault switches.
func (s *Server) getFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.faults)
}

// postFaults replaces the fault switches with {"faults":[…]}.
func (s *Server) postFaults(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Faults []Fault `json:"faults"`
	}
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &body)
	}
	if err == nil {
		err = s.faults.Set(body.Faults...)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, object{"error": err.Error()})
		return
	}
	s.getFaults(w, r)
}

// postRestart restarts the server.
func (s *Server) postRestart(w http.ResponseWriter, _ *http.Request) {
	// The restart also closes this request's connection, so the response is flushed first.
	writeJSON(w, http.StatusOK, object{"restarting": true})
	_ = http.NewResponseController(w).Flush()
	select {
	case s.tasks <- task{s.restartEngines, make(chan error, 1)}:
	default: // enough restarts are pending
	}
}

// getState serves the server's internal state, for tests and people.
func (s *Server) getState(w http.ResponseWriter, _ *http.Request) {
	type state struct {
		Seq         uint64 `json:"seq"` // of the next batch of events
		Subscribers int    `json:"subscribers"`
		Dropped     uint64 `json:"dropped"` // batches that a slow subscriber lost
		Cached      int    `json:"cached"`  // blocks published as cached
		Known       int    `json:"known"`   // blocks whose tokens are known
		Busy        int    `json:"busy"`    // requests
		Lives       uint64 `json:"lives"`   // engines started so far
	}
	ranks := make([]state, len(s.ranks))
	for i, r := range s.ranks {
		st := &ranks[i]
		r.mu.Lock()
		st.Busy, st.Lives = r.mu.busy, r.mu.lives
		r.mu.Unlock()
		if l := r.currentInstance(); l != nil {
			st.Known = l.ledger.countBlocks()
		}
		f := r.feed
		f.mu.Lock()
		st.Seq, st.Cached = f.mu.seq, len(f.mu.cached)
		if f.pub != nil {
			st.Subscribers, st.Dropped = f.pub.Subscribers(), f.pub.Dropped()
		}
		f.mu.Unlock()
	}
	s.mu.Lock()
	transfers := object{"sent": s.mu.sent, "received": s.mu.received, "missed": s.mu.missed}
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, object{"dialect": s.cfg.Dialect, "ranks": ranks, "leases": s.countLeases(), "transfers": transfers, "processed": s.Processed()})
}
