package worker_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
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

var discard = slog.New(slog.DiscardHandler)

// moody is an engine that can stop answering, and records the canaries.
type moody struct {
	*servetest.Engine
	isLocal bool // in the worker's process, otherwise on the network
	mu      struct {
		sync.Mutex
		mood    mood
		changed chan struct{}
		since   time.Time
		asked   []time.Time // by the canary
	}
}

type mood int

const (
	well   mood = iota
	silent      // accepts requests and sends nothing
	deaf        // does not even return when canceled
	failing
	prefilling // sends nothing, but its signs show work
)

// HealthReport implements engine.SignSource.
func (m *moody) HealthReport() (s engine.HealthReport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Remote = !m.isLocal
	if m.mu.mood == prefilling {
		s.Progress = uint64(time.Since(m.mu.since) / time.Second)
	}
	return s
}

func newMoody(e *servetest.Engine) *moody {
	m := &moody{Engine: e}
	m.mu.changed = make(chan struct{})
	return m
}

func (m *moody) be(now mood) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.mood, m.mu.since = now, time.Now()
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
}

// canaries returns the times of the canaries, since start.
func (m *moody) canaries(start time.Time) (at []time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.mu.asked {
		at = append(at, a.Sub(start))
	}
	m.mu.asked = nil
	return at
}

func (m *moody) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	m.mu.Lock()
	now, changed := m.mu.mood, m.mu.changed
	if req.ID == "canary" {
		m.mu.asked = append(m.mu.asked, time.Now())
	}
	m.mu.Unlock()
	for now == deaf {
		<-changed
		m.mu.Lock()
		now, changed = m.mu.mood, m.mu.changed
		m.mu.Unlock()
	}
	switch now {
	case silent, prefilling:
		<-ctx.Done()
		return ctx.Err()
	case failing:
		return fault.New(fault.Internal, "no memory")
	}
	return m.Engine.Generate(ctx, req, sink)
}

// pass lets virtual time pass, and lets everything due at its end happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// metric returns the value of a metric by its name and labels as printed.
func (r *rig) metric(series string) string {
	rec := httptest.NewRecorder()
	r.metrics.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(rec.Body.String()) {
		if v, ok := strings.CutPrefix(line, "penstock_"+series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// ping returns the answer to a ping.
func (r *rig) ping() (pong engine.Pong) {
	r.t.Helper()
	err := r.rpc.Call(r.t.Context(), r.addr(), engine.MethodPing, nil, func(f []byte) (err error) {
		pong, err = engine.DecodePong(f)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return pong
}

// state is the state in a ping's answer.
func (r *rig) state() string {
	r.t.Helper()
	return r.ping().State
}

// TestCanary: an idle engine is asked for a token. If it does not answer, its worker is not ready, and
// publishes that at once, until the engine answers again.
func TestCanary(t *testing.T) {
	for _, mood := range []mood{silent, deaf, failing} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			r.cfg.LoadInterval = time.Hour // changes are published at once
			r.cfg.LoadRefresh = time.Hour
			h := &history{}
			end := r.follow(h)
			eng := newMoody(r.engine)
			start := time.Now()
			r.start(eng)
			pass(time.Minute)
			if got := eng.canaries(start); len(got) < 4 || got[0] < 10*time.Second || got[0] > 11*time.Second {
				t.Errorf("in an idle minute it was asked at %v", got)
			}
			if r.state() != engine.StateReady || r.engine.Load().CachedBlocks != 0 {
				t.Errorf("state %q, load %+v", r.state(), r.engine.Load())
			}
			eng.be(mood)
			start = time.Now()
			pass(16 * time.Second)
			if r.state() != engine.StateNotReady {
				t.Errorf("mood %d: state %q after %v", mood, r.state(), time.Since(start))
			}
			asked := len(eng.canaries(start))
			pass(20 * time.Second)
			switch again := len(eng.canaries(start)); {
			case mood == deaf && (asked != 1 || again != 0):
				t.Errorf("an engine that does not return was asked %d and %d times", asked, again)
			case mood != deaf && again < 4:
				t.Errorf("mood %d: asked %d times in 20 s while not ready", mood, again)
			}
			eng.be(well)
			pass(6 * time.Second) // a pending canary may have to fail first
			if r.state() != engine.StateReady {
				t.Errorf("mood %d: state %q when it is well again", mood, r.state())
			}
			if got, want := h.seen(), []string{"ready", "not_ready", "ready"}; !slices.Equal(got, want) {
				t.Errorf("mood %d: reported %q, want %q", mood, got, want)
			}
			if got := r.metric(`worker_canaries_total{outcome="ok",worker="7"}`); got == "" || got == "0" {
				t.Errorf("%q canaries lived", got)
			}
			if got := r.metric(`worker_ready{worker="7"}`); got != "1" {
				t.Errorf("ready is %q", got)
			}
			if got := r.metric(`worker_requests_total{outcome="ok",worker="7"}`); got != "" {
				t.Errorf("%q requests are counted", got)
			}
			r.stop()
			end()
		})
	}
}

// TestCanaryIsNotLoad: while only the canary runs, the reported load is the previous one.
func TestCanaryIsNotLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: 2 * time.Second})
		r.start(r.engine)
		for range 30 {
			pass(500 * time.Millisecond)
			busy := r.engine.Load().Running
			if n := r.w.Health().Load.Running; n != 0 {
				t.Fatalf("%d sequences are reported, %d run", n, busy)
			}
		}
		if got := r.metric(`worker_canaries_total{outcome="ok",worker="7"}`); got != "1" {
			t.Errorf("%q canaries", got)
		}
		r.stop()
	})
}

// TestCanaryRests: no canary is sent while tokens arrive or the engine's signs show work. An engine
// that shows neither while calls wait gets one, and has a minute to answer.
func TestCanaryRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: 5 * time.Second})
		eng := newMoody(r.engine)
		start := time.Now()
		r.start(eng)
		req := request(4)
		req.Stop.MaxTokens = 20
		if _, err := r.generate(t.Context(), r.addr(), req); err != nil {
			t.Fatal(err)
		}
		if got := eng.canaries(start); len(got) != 0 {
			t.Errorf("beside a token every 5 s it was asked at %v", got)
		}

		eng.be(prefilling)
		start = time.Now()
		long, give := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { _, err := r.generate(long, r.addr(), request(4)); ended <- err }()
		pass(10 * time.Minute)
		if got := eng.canaries(start); len(got) != 0 || r.state() != engine.StateReady {
			t.Errorf("beside a long prefill it was asked at %v; it is %s", got, r.state())
		}
		give()
		<-ended

		eng.be(silent)
		start = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := r.generate(ctx, r.addr(), request(4)); done <- err }()
		pass(64 * time.Second)
		if got := eng.canaries(start); len(got) == 0 || got[0] < 10*time.Second || got[len(got)-1] < time.Minute {
			t.Errorf("with a call that gets nothing it was asked at %v", got)
		}
		if r.state() != engine.StateNotReady {
			t.Errorf("state %q", r.state())
		}
		// A token of a call is as good as the canary's.
		eng.be(well)
		if _, err := r.generate(t.Context(), r.addr(), request(4)); err != nil || r.state() != engine.StateReady {
			t.Errorf("state %q after an answer, %v", r.state(), err)
		}
		cancel()
		if err := <-done; fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("the call that got nothing ended with %v: nobody goes on with it", err)
		}
		r.stop()
	})
}

// TestCanaryOfLocalEngine: an idle engine in the worker's process which gets little of a busy machine stays ready. One which
// does not answer for 30 s is not.
func TestCanaryOfLocalEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: 25 * time.Second})
		eng := newMoody(r.engine)
		eng.isLocal = true
		h := &history{}
		end := r.follow(h)
		r.start(eng)
		pass(5 * time.Minute)
		eng.be(silent)
		pass(time.Minute + 10*time.Second)
		if got, want := h.seen(), []string{"ready", "not_ready"}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
		r.stop()
		end()
	})
}

// TestCallDuringLongCanary: a call which arrives while an engine in the worker's process is asked is judged as if it were not
// asked: the canary ends soon, and the engine has a minute since the call arrived.
func TestCallDuringLongCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		eng := newMoody(r.engine)
		eng.isLocal = true
		r.start(eng)
		pass(time.Second)
		eng.be(silent)
		start := time.Now()
		pass(15 * time.Second)
		done := make(chan error, 1)
		go func() { _, err := r.generate(t.Context(), r.addr(), request(4)); done <- err }()
		pass(70 * time.Second)
		if got := eng.canaries(start); len(got) < 2 || got[1] > 30*time.Second || r.state() != engine.StateNotReady {
			t.Errorf("it was asked at %v, and is %s", got, r.state())
		}
		if err := <-done; fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("the call ended with %v", err)
		}
		r.stop()
	})
}

// TestNoCanary: canaries can be turned off.
func TestNoCanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.CanaryInterval = new(time.Duration(0))
		eng := newMoody(r.engine)
		r.start(eng)
		pass(time.Hour)
		if got := eng.canaries(time.Now()); len(got) != 0 {
			t.Errorf("asked %d times", len(got))
		}
		r.stop()
	})
}

// TestCanarySlow: an idle engine that needs longer for a token than the first canary waits, and does
// not report its work, is ready once it has answered, and stays ready.
func TestCanarySlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: 13 * time.Second})
		eng := newMoody(r.engine)
		r.start(eng)
		pass(90 * time.Second)
		for range 120 {
			pass(time.Second)
			if got := r.state(); got != engine.StateReady {
				t.Fatalf("the worker of a slow engine is %s", got)
			}
		}
		r.stop()
	})
}
