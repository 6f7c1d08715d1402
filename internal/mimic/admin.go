package mimic

import (
	"encoding/json"
	"io"
	"net/http"
)

// getFaults shows the switches.
func (s *Server) getFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.faults)
}

// postFaults puts the switches of {"faults":[…]} in the place of those there were.
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

// postRestart has the server restart.
func (s *Server) postRestart(w http.ResponseWriter, _ *http.Request) {
	// The connection of this request is lost too: the answer goes out first.
	writeJSON(w, http.StatusOK, object{"restarting": true})
	_ = http.NewResponseController(w).Flush()
	select {
	case s.errands <- errand{s.restart, make(chan error, 1)}:
	default: // enough of them are due
	}
}

// getState shows what tests and people want to know of a server from outside.
func (s *Server) getState(w http.ResponseWriter, _ *http.Request) {
	type state struct {
		Seq         uint64 `json:"seq"` // of the next batch of events
		Subscribers int    `json:"subscribers"`
		Dropped     uint64 `json:"dropped"` // batches that a subscriber was too slow for
		Cached      int    `json:"cached"`  // blocks said to be cached
		Known       int    `json:"known"`   // blocks whose tokens are known
		Busy        int    `json:"busy"`    // requests
		Lives       uint64 `json:"lives"`   // engines so far
	}
	ranks := make([]state, len(s.ranks))
	for i, r := range s.ranks {
		st := &ranks[i]
		r.mu.Lock()
		st.Busy, st.Lives = r.mu.busy, r.mu.lives
		r.mu.Unlock()
		if l := r.now(); l != nil {
			st.Known = l.ledger.len()
		}
		f := r.feed
		f.mu.Lock()
		st.Seq, st.Cached = f.mu.seq, len(f.mu.cached)
		if f.pub != nil {
			st.Subscribers, st.Dropped = f.pub.Subscribers(), f.pub.Dropped()
		}
		f.mu.Unlock()
	}
	writeJSON(w, http.StatusOK, object{"dialect": s.cfg.Dialect, "ranks": ranks, "leases": s.leases(), "processed": s.Processed()})
}
