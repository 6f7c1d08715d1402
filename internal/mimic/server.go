package mimic

import (
	"context"
	"errors"
)

// Server imitates one engine. Create it with [New].
type Server struct {
	cfg    Config
	faults *Faults
}

// New returns a server whose addresses are bound and which serves nothing until Run, or
// everything that is wrong with cfg.
func New(cfg Config) (*Server, error) {
	cfg.ensureDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, faults: newFaults(cfg.Seed, cfg.Faults)}, nil
}

// Run serves until ctx ends; it returns nil then. Close is not needed after it.
func (s *Server) Run(ctx context.Context) error {
	return errors.New("mimic: not there yet")
}

// Close gives the addresses back if Run was never called.
func (s *Server) Close() error { return nil }

// URL is the base URL of the HTTP server.
func (s *Server) URL() string { return "" }

// EventsAddr is the endpoint of the events of rank 0; "" if there is none.
func (s *Server) EventsAddr() string { return "" }

// ReplayAddr is the endpoint of the replay of rank 0; "" if there is none.
func (s *Server) ReplayAddr() string { return "" }

// SnapshotAddr is the endpoint of the snapshots of rank 0; "" if there is none.
func (s *Server) SnapshotAddr() string { return "" }

// Faults returns the switches.
func (s *Server) Faults() *Faults { return s.faults }

// Restart forgets everything, as a process that was started anew: answers break off, caches are
// empty and batches of events are numbered from the first again.
func (s *Server) Restart() error { return nil }
