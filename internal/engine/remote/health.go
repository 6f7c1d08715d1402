package remote

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"penstock/core/fault"
)

// checkTimeout bounds one question whether the engine answers, and checkLeast and checkMost
// the time between them while it does not.
const (
	checkTimeout = 5 * time.Second
	checkLeast   = 250 * time.Millisecond
	checkMost    = 2 * time.Second
)

// health is whether an engine answers.
type health struct {
	host string
	log  *slog.Logger
	wake chan struct{} // of capacity 1: it went down
	mu   struct {
		sync.Mutex
		err   error // nil while it answers
		since time.Time
		downs uint64
	}
}

func newHealth(host string, log *slog.Logger) *health {
	return &health{host: host, log: log, wake: make(chan struct{}, 1)}
}

// down returns an Unavailable error while the engine does not answer.
func (h *health) down() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.err == nil {
		return nil
	}
	return fault.New(fault.Unavailable, "the engine at %s does not answer; see whether it runs", h.host)
}

// note takes what a call ended with. An engine that was not reached is down at once; one that
// broke off an answer is asked.
func (h *health) note(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	switch {
	case errors.Is(err, errUnreachable):
		h.fell(err)
	case !errors.Is(err, errBrokeOff):
		return
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// fell says that the engine does not answer.
func (h *health) fell(err error) {
	h.mu.Lock()
	first := h.mu.err == nil
	if first {
		h.mu.since = time.Now()
		h.mu.downs++
	}
	h.mu.err = err
	h.mu.Unlock()
	if first {
		h.log.Warn("the engine does not answer", "engine", h.host, "error", err)
	}
}

// up says that the engine answers again.
func (h *health) up() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.err != nil {
		h.log.Info("the engine answers again", "engine", h.host, "after", time.Since(h.mu.since).Round(time.Millisecond))
	}
	h.mu.err = nil
}

// watchHealth asks an engine that broke off an answer whether it is still there, and one that does not
// answer until it does.
func (b *Base) watchHealth(ctx context.Context) {
	for {
		select {
		case <-b.health.wake:
		case <-ctx.Done():
			return
		}
		if b.health.down() == nil {
			if err := b.alive(ctx); err != nil && ctx.Err() == nil {
				b.health.fell(err)
			}
		}
		wait := checkLeast
		for b.health.down() != nil {
			if pause(ctx, wait) != nil {
				return
			}
			wait = min(2*wait, checkMost)
			if b.alive(ctx) == nil {
				b.cache.restarted()
				b.health.up()
			}
		}
	}
}

func (b *Base) alive(ctx context.Context) error {
	if b.cfg.Alive == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return b.cfg.Alive(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
