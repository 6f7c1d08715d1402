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

// checkTimeout bounds one question whether the engine answers, and checkLeast and checkMost
// the time between them while it does not.
const (
	checkTimeout = 5 * time.Second
	checkLeast   = 250 * time.Millisecond
	checkMost    = 2 * time.Second
	// checkSame is the time between two questions to one that answers, whether it still is the one that it
	// was: a server that is started anew between two requests breaks no connection of ours.
	checkSame = 5 * time.Second
)

// errAnother marks errors that say that an engine answers, and is not the one that it was.
var errAnother = errors.New("another engine")

// Another is what Alive returns of an engine that serves something else than what was found out about it, by
// which the tokens of requests would mean something else: what names the difference.
func Another(host, what string) error {
	return &fault.Error{
		Code: fault.Unavailable, Err: errAnother,
		Message: "the engine at " + host + " serves " + what + " than when it was opened; if it is not opened again by itself, start the worker again",
	}
}

// health is whether an engine answers.
type health struct {
	host  string
	log   *slog.Logger
	every time.Duration // checkSame
	wake  chan struct{} // of capacity 1: it went down
	mu    struct {
		sync.Mutex
		err   error // nil while it answers
		doubt bool  // an answer broke off, and it has not been asked since
		since time.Time
		downs uint64
		asked [questions]time.Time // since when a question has no answer; zero if it has
		told  map[int]func()       // of a change of live
		last  int                  // key of told
	}
}

func newHealth(host string, log *slog.Logger) *health {
	return &health{host: host, log: log, every: checkSame, wake: make(chan struct{}, 1)}
}

// down returns an Unavailable error while the engine does not answer.
func (h *health) down() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.mu.err == nil:
		return nil
	case errors.Is(h.mu.err, errAnother):
		return h.mu.err
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
	default:
		h.change(func() { h.mu.doubt = true })
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// fell says that the engine does not answer.
func (h *health) fell(err error) {
	var first, another bool
	h.change(func() {
		first = h.mu.err == nil
		another = errors.Is(err, errAnother) && !errors.Is(h.mu.err, errAnother)
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

// up says that the engine answers.
func (h *health) up() {
	h.change(func() {
		if h.mu.err != nil {
			h.log.Info("the engine answers again", "after", time.Since(h.mu.since).Round(time.Millisecond))
		}
		h.mu.err, h.mu.doubt = nil, false
	})
}

// live is what is known of whether the engine can be reached.
func (h *health) live() engine.Liveness {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.liveLocked()
}

func (h *health) liveLocked() engine.Liveness {
	switch {
	case h.mu.err != nil:
		return engine.Down
	case h.mu.doubt:
		return engine.Doubt
	}
	return engine.Up
}

// change changes what is known, and tells those who watch when that is of live. f must not block.
func (h *health) change(f func()) {
	h.mu.Lock()
	before := h.liveLocked()
	f()
	var tell []func()
	if h.liveLocked() != before {
		for _, changed := range h.mu.told { // the order does not matter
			tell = append(tell, changed)
		}
	}
	h.mu.Unlock()
	for _, changed := range tell {
		changed()
	}
}

// watch calls changed behind each change of live, until ctx ends.
func (h *health) watch(ctx context.Context, changed func()) {
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

// question is one that an engine which works answers at once, whatever it has to do.
type question int

// The questions.
const (
	whetherAlive question = iota
	itsLoad
	questions
)

// ask notes that a question is out, until the function that it returns is called.
func (h *health) ask(q question) (answered func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.asked[q] = time.Now()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.mu.asked[q] = time.Time{}
	}
}

// unanswered is since when a question has no answer, zero if each has.
func (h *health) unanswered() (since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.mu.asked {
		if since.IsZero() || !at.IsZero() && at.Before(since) {
			since = at
		}
	}
	return since
}

// watchHealth asks an engine that broke off an answer whether it is still there, one that does not
// answer until it does, and any from time to time whether it is the same. That such a question has no
// answer in time is no reason to think that the engine is gone: it may have much to do.
func (b *Base) watchHealth(ctx context.Context) {
	same := time.NewTicker(b.health.every)
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
		if b.health.down() == nil {
			ask := b.alive
			if asked {
				ask = b.same
			}
			switch err := ask(ctx); {
			case ctx.Err() != nil:
			case err == nil:
				b.health.up()
			case !asked || errors.Is(err, errAnother) || errors.Is(err, errUnreachable):
				b.health.fell(err)
			}
		}
		wait := checkLeast
		for b.health.down() != nil {
			if backoff.Pause(ctx, wait) != nil {
				return
			}
			wait = min(2*wait, checkMost)
			switch err := b.alive(ctx); {
			case err == nil:
				b.cache.restarted()
				b.salts.doubt()
				b.counts.restarted()
				b.health.up()
			case ctx.Err() == nil:
				b.health.fell(err)
			}
		}
	}
}

// answersFor returns err, which says that the engine failed on a request, if the engine works: it is asked.
// An engine that does not may say so of all requests, and another worker serves this one.
func (b *Base) answersFor(ctx context.Context, err error) error {
	asked := b.alive(ctx)
	if asked == nil || ctx.Err() != nil {
		return err
	}
	return &fault.Error{Code: fault.Unavailable, Message: err.Error(), Err: errors.Join(errBrokeOff, asked)}
}

func (b *Base) alive(ctx context.Context) error { return b.whether(ctx, b.cfg.Alive) }

// same asks an engine that answers whether it is the one that it was.
func (b *Base) same(ctx context.Context) error {
	if b.cfg.Same == nil {
		return b.alive(ctx)
	}
	return b.whether(ctx, b.cfg.Same)
}

// whether asks a question that an engine which works answers at once.
func (b *Base) whether(ctx context.Context, ask func(context.Context) error) error {
	if ask == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	defer b.health.ask(whetherAlive)()
	return ask(ctx)
}
