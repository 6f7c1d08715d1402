package remote

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
	"penstock/internal/engine"
)

// checkTimeout bounds one liveness probe. downPauseMin and downPauseMax bound the time between probes while
// the engine does not answer.
const (
	checkTimeout = 5 * time.Second
	downPauseMin = 250 * time.Millisecond
	downPauseMax = 2 * time.Second
	// sameInterval is the time between checks that an answering engine is still the same instance: a restart
	// between two requests breaks no connection.
	sameInterval = 5 * time.Second
)

// errDifferentEngine marks errors which say that an engine answers, but is not the same as before.
var errDifferentEngine = errors.New("another engine")

// DifferentEngineError is the result of CheckAlive for an engine that no longer matches what the adapter
// found when it opened it, so that the tokens of requests would have other meanings; what names the
// difference.
func DifferentEngineError(host, what string) error {
	return &fault.Error{
		Code: fault.Unavailable, Err: errDifferentEngine,
		Message: "the engine at " + host + " serves " + what + " than when it was opened; if it is not opened again by itself, start the worker again",
	}
}

// healthMonitor tracks whether an engine answers.
//
//	err           doubt   state
//	nil           false   up
//	nil           true    suspect: a response broke off, a probe is due
//	not nil       false   down: probed until it answers
type healthMonitor struct {
	host         string
	log          *slog.Logger
	sameInterval time.Duration // sameInterval
	wake         chan struct{} // of capacity 1: a probe is due
	mu           struct {
		sync.Mutex
		err   error // nil while it answers
		doubt bool  // a response broke off, and it has not been probed since
		since time.Time
		downs uint64
		asked [probeKinds]time.Time // since when a probe is unanswered; zero if it is not
		told  map[int]func()        // callbacks for changes of the liveness
		last  int                   // last key of the callbacks
	}
}

func newHealthMonitor(host string, log *slog.Logger) *healthMonitor {
	return &healthMonitor{host: host, log: log, sameInterval: sameInterval, wake: make(chan struct{}, 1)}
}

// downError returns an Unavailable error while the engine does not answer.
func (h *healthMonitor) downError() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.mu.err == nil:
		return nil
	case errors.Is(h.mu.err, errDifferentEngine):
		return h.mu.err
	}
	return fault.New(fault.Unavailable, "the engine at %s does not answer; see whether it runs", h.host)
}

// noteCallError takes the error of a call. An engine that was not reached is down at once; an engine that
// broke off a response is probed.
func (h *healthMonitor) noteCallError(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	switch {
	case errors.Is(err, errUnreachable):
		h.markDown(err)
	case !errors.Is(err, errBrokeOff):
		return
	default:
		h.update(func() { h.mu.doubt = true })
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// markDown records that the engine does not answer.
func (h *healthMonitor) markDown(err error) {
	var first, another bool
	h.update(func() {
		first = h.mu.err == nil
		another = errors.Is(err, errDifferentEngine) && !errors.Is(h.mu.err, errDifferentEngine)
		if first {
			h.mu.since = time.Now()
			h.mu.downs++
		}
		h.mu.err, h.mu.doubt = err, false
	})
	switch {
	case another:
		h.log.Error("the engine is not the one that it was", "error", err)
	case first:
		h.log.Warn("the engine does not answer", "error", err)
	}
}

// markUp records that the engine answers.
func (h *healthMonitor) markUp() {
	h.update(func() {
		if h.mu.err != nil {
			h.log.Info("the engine answers again", "after", time.Since(h.mu.since).Round(time.Millisecond))
		}
		h.mu.err, h.mu.doubt = nil, false
	})
}

// liveness says whether the engine can be reached.
func (h *healthMonitor) liveness() engine.Liveness {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.livenessLocked()
}

func (h *healthMonitor) livenessLocked() engine.Liveness {
	switch {
	case h.mu.err != nil:
		return engine.Down
	case h.mu.doubt:
		return engine.Suspect
	}
	return engine.Up
}

// update changes the state with f, and calls the watchers if the liveness changed. f must not block.
func (h *healthMonitor) update(f func()) {
	h.mu.Lock()
	before := h.livenessLocked()
	f()
	var tell []func()
	if h.livenessLocked() != before {
		for _, changed := range h.mu.told { // the order does not matter
			tell = append(tell, changed)
		}
	}
	h.mu.Unlock()
	for _, changed := range tell {
		changed()
	}
}

// watchLiveness calls changed after each change of the liveness, until ctx ends.
func (h *healthMonitor) watchLiveness(ctx context.Context, changed func()) {
	h.mu.Lock()
	if h.mu.told == nil {
		h.mu.told = map[int]func(){}
	}
	h.mu.last++
	key := h.mu.last
	h.mu.told[key] = changed
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	delete(h.mu.told, key)
	h.mu.Unlock()
}

// probeKind is a kind of probe that a working engine answers at once under any load.
type probeKind int

// The kinds of probes.
const (
	probeAlive probeKind = iota
	probeLoad
	probeKinds
)

// startProbe records that a probe is out, until the returned function is called.
func (h *healthMonitor) startProbe(q probeKind) (answered func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.asked[q] = time.Now()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.mu.asked[q] = time.Time{}
	}
}

// unansweredSince returns since when a probe is unanswered, zero if none is.
func (h *healthMonitor) unansweredSince() (since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.mu.asked {
		if since.IsZero() || !at.IsZero() && at.Before(since) {
			since = at
		}
	}
	return since
}

// watchHealth probes an engine that broke off a response, and one that does not answer until it does. It
// checks periodically that the engine is the same instance; a timeout of that check is no reason to mark the
// engine as down: it may be busy.
func (b *Base) watchHealth(ctx context.Context) {
	same := time.NewTicker(b.health.sameInterval)
	defer same.Stop()
	for {
		asked := false
		select {
		case <-b.health.wake:
		case <-same.C:
			asked = true
		case <-ctx.Done():
			return
		}
		if b.health.downError() == nil {
			ask := b.checkAlive
			if asked {
				ask = b.checkSame
			}
			switch err := ask(ctx); {
			case ctx.Err() != nil:
			case err == nil:
				b.health.markUp()
			case !asked || errors.Is(err, errDifferentEngine) || errors.Is(err, errUnreachable):
				b.health.markDown(err)
			}
		}
		wait := downPauseMin
		for b.health.downError() != nil {
			if backoff.SleepContext(ctx, wait) != nil {
				return
			}
			wait = min(2*wait, downPauseMax)
			switch err := b.checkAlive(ctx); {
			case err == nil:
				b.cache.noteRestart()
				b.salts.invalidateProofs()
				b.mediaCounts.requestRecount()
				b.health.markUp()
			case ctx.Err() == nil:
				b.health.markDown(err)
			}
		}
	}
}

// confirmEngineError returns err, which says that the engine failed on a request, if a probe shows that the
// engine works. A broken engine may fail all requests, and another worker can serve this one.
func (b *Base) confirmEngineError(ctx context.Context, err error) error {
	asked := b.checkAlive(ctx)
	if asked == nil || ctx.Err() != nil {
		return err
	}
	return &fault.Error{Code: fault.Unavailable, Message: err.Error(), Err: errors.Join(errBrokeOff, asked)}
}

func (b *Base) checkAlive(ctx context.Context) error { return b.runProbe(ctx, b.cfg.CheckAlive) }

// sameInterval checks that an answering engine is the same instance.
func (b *Base) checkSame(ctx context.Context) error {
	if b.cfg.CheckSame == nil {
		return b.checkAlive(ctx)
	}
	return b.runProbe(ctx, b.cfg.CheckSame)
}

// runProbe makes a probe that a working engine answers at once.
func (b *Base) runProbe(ctx context.Context, ask func(context.Context) error) error {
	if ask == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	defer b.health.startProbe(probeAlive)()
	return ask(ctx)
}
