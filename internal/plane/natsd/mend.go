package natsd

import (
	"context"
	"errors"
	"os"
	"time"

	"penstock/internal/backoff"
)

// writeError is what the server logs, in lower case, when a write of a stream has
// failed, as on a full disk. From then on that stream takes nothing, not even when
// there is room again, until the server is started anew; there is no other sign of
// it that a program could see, not even in the server's health.
const writeError = "critical write error"

// probeSize is how much room a directory must have, in bytes, before the server is
// started anew in it: some blocks of some streams.
const probeSize = 16 << 20

// watch starts the server anew, when a stream has failed to write and there is room
// for it, until ctx ends. Clients see an interruption of moments, which all planes
// live through.
func (s *Server) watch(ctx context.Context) {
	for {
		select {
		case <-s.current().log.hurt:
		case <-ctx.Done():
			return
		}
		s.log.Error("nats cannot write; it goes on when there is room: free some in the data directory", "dir", s.dir, "needs_bytes", probeSize)
		if s.mend(ctx) != nil {
			return
		}
		s.log.Info("nats writes again", "dir", s.dir)
	}
}

// mend waits for room and replaces the server, however often that takes. It returns
// an error if ctx ended.
func (s *Server) mend(ctx context.Context) error {
	wait := backoff.Backoff{Least: 250 * time.Millisecond, Most: 5 * time.Second}
	for {
		err := probe(s.dir)
		if err == nil {
			if err = s.replace(); err == nil {
				return nil
			}
			s.log.Warn("nats cannot be started anew, trying again", "error", err)
		}
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// probe returns nil if a directory takes new data.
func probe(dir string) (err error) {
	f, err := os.CreateTemp(dir, "room-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 1<<20)
	for range probeSize / len(block) {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return f.Sync()
}

// replace ends the server and starts another at the same port over the same data.
func (s *Server) replace() error {
	old := s.current().nats
	old.Shutdown()
	old.WaitForShutdown()
	return s.launch(options(&s.cfg, s.dir))
}
