package natsd

import (
	"context"
	"errors"
	"os"
	"time"

	"penstock/internal/backoff"
)

// writeErrorText is contained, in lower case, in the server's log when a write of a stream has
// failed, for example on a full disk. From then on the stream accepts no writes, even when there is
// space again, until the server is restarted. A program can detect this only from the log, not even
// from the server's health.
const writeErrorText = "critical write error"

// probeSize is how much free space a directory must have before the server is restarted in it, in
// bytes: a few blocks of a few streams.
const probeSize = 16 << 20

// watchWrites restarts the server when a stream has failed to write and there is space again, until
// ctx ends. Clients see a short interruption, which all planes tolerate.
func (s *Server) watchWrites(ctx context.Context) {
	for {
		select {
		case <-s.currentServer().log.writeFailed:
		case <-ctx.Done():
			return
		}
		s.log.Error("nats cannot write; it goes on when there is room: free some in the data directory", "dir", s.dir, "needs_bytes", probeSize)
		if s.restartWhenWritable(ctx) != nil {
			return
		}
		s.log.Info("nats writes again", "dir", s.dir)
	}
}

// restartWhenWritable waits for free space and replaces the server, with as many attempts as
// needed. It returns an error if ctx ended.
func (s *Server) restartWhenWritable(ctx context.Context) error {
	wait := backoff.Backoff{Min: 250 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := probeSpace(s.dir)
		if err == nil {
			if err = s.replaceServer(); err == nil {
				return nil
			}
			s.log.Warn("nats cannot be started anew, trying again", "error", err)
		}
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// probeSpace returns nil if new data can be written to the directory.
func probeSpace(dir string) (err error) {
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

// replaceServer stops the server and starts another at the same port with the same data.
func (s *Server) replaceServer() error {
	old := s.currentServer().nats
	old.Shutdown()
	old.WaitForShutdown()
	return s.launchServer(serverOptions(&s.cfg, s.dir))
}
