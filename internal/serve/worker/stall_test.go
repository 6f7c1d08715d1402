package worker_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// balky is an engine whose answers to requests called "stall…" stop after their first tokens, and whose
// reported load changes whenever a request starts or ends.
type balky struct {
	*servetest.Engine
	mu struct {
		sync.Mutex
		running int
		frozen  chan struct{} // if not nil, it sends nothing until this is closed
	}
}

// Load implements engine.LoadSource.
func (b *balky) Load() engine.Load {
	b.mu.Lock()
	defer b.mu.Unlock()
	return engine.Load{Running: b.mu.running}
}

func (b *balky) count(n int) (frozen chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.running += n
	return b.mu.frozen
}

func (b *balky) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	frozen := b.count(1)
	defer b.count(-1)
	after, stalls := strings.CutPrefix(req.ID, "stall")
	return b.Engine.Generate(ctx, req, func(d *engine.Delta) error {
		if frozen == nil {
			frozen = b.count(0)
		}
		if frozen != nil {
			select {
			case <-frozen:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if stalls && len(d.Tokens) > 0 && (after == "" || d.Pos >= 5) {
			<-ctx.Done()
			return ctx.Err()
		}
		return sink(d)
	})
}

// call starts a call; ended receives its result.
func (r *rig) call(ctx context.Context, id string, tokens int) (ended chan error) {
	ended = make(chan error, 1)
	req := request(4)
	req.ID, req.Stop = id, engine.Stop{MaxTokens: tokens, IgnoreEOS: true}
	addr := r.addr()
	go func() {
		_, err := r.generate(ctx, addr, req)
		ended <- err
	}()
	return ended
}

// TestStreamStalls: a stream without output while its engine works is ended and counted, so that
// another worker continues it. This includes a stream without its first token, and the only stream of
// an engine which answers the canary.
func TestStreamStalls(t *testing.T) {
	for name, tt := range map[string]struct {
		id    string
		alone bool
		most  time.Duration
	}{
		"in the middle":          {"stall5", false, 13 * time.Second},
		"in the middle, alone":   {"stall5", true, 15 * time.Second},
		"before the first token": {"stall", false, 65 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, servetest.Config{})
				r.start(&balky{Engine: r.engine})
				if err := <-r.call(t.Context(), "teaches", 100); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				start := time.Now()
				stalled := r.call(ctx, tt.id, 100)
				beside := make(chan error, 1)
				if !tt.alone {
					beside = r.call(ctx, "goes on", 9000)
				}
				if err := <-stalled; fault.CodeOf(err) != fault.Unavailable || time.Since(start) > tt.most || time.Since(start) < 10*time.Second {
					t.Errorf("it ended after %v: %v", time.Since(start), err)
				}
				synctest.Wait() // the monitor counts a stream after it has ended it
				if got := r.metric(`streams_stalled_total{worker="7"}`); got != "1" {
					t.Errorf("%q streams stalled", got)
				}
				if r.state() != engine.StateReady {
					t.Errorf("the worker is %s", r.state())
				}
				if !tt.alone {
					if err := <-beside; err != nil {
						t.Errorf("the stream beside it: %v", err)
					}
				}
				r.stop()
			})
		})
	}
}

// TestSlowIsNotStalled: a client that does not read, an engine that is slow for each token, and a
// prefill that delays all other requests are not stalls.
func TestSlowIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: 8 * time.Second})
		r.start(&balky{Engine: r.engine})
		a, b := r.call(t.Context(), "a", 20), r.call(t.Context(), "b", 20)
		if err := <-a; err != nil {
			t.Error(err)
		}
		if err := <-b; err != nil {
			t.Error(err)
		}
		r.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(&balky{Engine: r.engine})
		release := make(chan struct{})
		done := make(chan error, 1)
		addr, first := r.addr(), true
		req := request(4)
		req.Stop = engine.Stop{MaxTokens: 3000, IgnoreEOS: true}
		go func() {
			done <- r.rpc.Call(t.Context(), addr, engine.MethodGenerate, engine.AppendRequest(nil, req), func([]byte) error {
				if first {
					first = false
					<-release
				}
				return nil
			})
		}()
		beside := r.call(t.Context(), "goes on", 9000)
		pass(80 * time.Second)
		close(release)
		if err := <-done; err != nil {
			t.Errorf("a client that did not read: %v", err)
		}
		if err := <-beside; err != nil {
			t.Error(err)
		}
		if got := r.metric(`streams_stalled_total{worker="7"}`); got != "0" {
			t.Errorf("%q streams stalled", got)
		}
		r.stop()
	})
}

// TestFrozenUnderTraffic: requests that start and end change an engine's load but do not hide that it
// produces nothing. The calls of an engine that does not work are ended, so that other workers continue
// them.
func TestFrozenUnderTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		h := &history{}
		end := r.follow(h)
		b := &balky{Engine: r.engine}
		r.start(b)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		old := r.call(ctx, "old", 9000)
		pass(time.Second)
		thaw := make(chan struct{})
		b.mu.Lock()
		b.mu.frozen = thaw
		b.mu.Unlock()
		start := time.Now()
		for time.Since(start) < 3*time.Minute && r.state() == engine.StateReady {
			given, give := context.WithTimeout(ctx, 700*time.Millisecond)
			go func() {
				defer give()
				_, _ = r.generate(given, r.addr(), request(4))
			}()
			pass(500 * time.Millisecond)
		}
		if took := time.Since(start); took > 70*time.Second {
			t.Errorf("found after %v", took)
		}
		select {
		case err := <-old:
			if fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("its stream ended with %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("its stream hangs")
			cancel()
		}
		close(thaw)
		b.mu.Lock()
		b.mu.frozen = nil
		b.mu.Unlock()
		pass(6 * time.Second)
		if got, want := h.seen(), []string{"ready", "not_ready", "ready"}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
		cancel()
		r.stop()
		end()
	})
}

var _ engine.LoadSource = (*balky)(nil)

// reached is an engine that knows whether it is reachable.
type reached struct {
	*servetest.Engine
	mu struct {
		sync.Mutex
		live    engine.Liveness
		changed func()
	}
}

// HealthReport implements engine.SignSource.
func (e *reached) HealthReport() engine.HealthReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	return engine.HealthReport{Live: e.mu.live}
}

// WatchHealth implements engine.SignWatcher.
func (e *reached) WatchHealth(ctx context.Context, changed func()) {
	e.mu.Lock()
	e.mu.changed = changed
	e.mu.Unlock()
	<-ctx.Done()
}

func (e *reached) be(live engine.Liveness) {
	e.mu.Lock()
	e.mu.live = live
	changed := e.mu.changed
	e.mu.Unlock()
	changed()
}

// TestWhatTheEngineKnows: an engine that may be unreachable makes its worker not ready at once, until
// it is reachable.
func TestWhatTheEngineKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.LoadInterval, r.cfg.LoadRefresh = time.Hour, time.Hour // changes are published at once
		h := &history{}
		end := r.follow(h)
		e := &reached{Engine: r.engine}
		r.start(e)
		for _, live := range []engine.Liveness{engine.Suspect, engine.Down, engine.Up, engine.Suspect, engine.Up} {
			e.be(live)
			if got := r.state(); (got == engine.StateReady) != (live == engine.Up) {
				t.Errorf("liveness %d: %s", live, got)
			}
			synctest.Wait()
		}
		if got, want := h.seen(), []string{"ready", "not_ready", "ready", "not_ready", "ready"}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
		r.stop()
		end()
	})
}

var _ engine.HealthWatcher = (*reached)(nil)
