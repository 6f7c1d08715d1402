package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/serve/servetest"
)

// slow is an engine that takes time to start.
type slow struct {
	*moody
	started chan struct{}
}

func (s *slow) Started() <-chan struct{} { return s.started }

// TestStartup: a worker whose engine is starting is not in discovery, and the engine's silence is
// normal.
func TestStartup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.CanaryInterval = new(10 * time.Second)
		eng := &slow{newMoody(r.engine), make(chan struct{})}
		eng.be(silent)
		begin := time.Now()
		r.start(eng)
		<-time.After(time.Minute)
		if n := len(r.registry.Instances()); n != 0 {
			t.Errorf("%d instances are registered while the engine starts", n)
		}
		eng.be(well)
		close(eng.started)
		synctest.Wait()
		if n := len(r.registry.Instances()); n != 1 {
			t.Errorf("%d instances are registered after the start, want 1", n)
		}
		<-time.After(5 * time.Second)
		if asked := eng.canaries(begin); len(asked) != 0 {
			t.Errorf("the engine was asked for a token %v after the start of the worker", asked)
		}
		<-time.After(10 * time.Second)
		if asked := eng.canaries(begin); len(asked) == 0 {
			t.Error("an idle engine was never asked for a token")
		}
		r.stop()
		if strings.Contains(r.log.String(), "not ready") {
			t.Error(r.log.String())
		}
	})
}

// TestStopWhileStarting: a worker that is stopped does not wait for its engine's start.
func TestStopWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(&slow{newMoody(r.engine), make(chan struct{})})
		r.stop()
	})
}

// TestReadyLevel: a worker logs its ready message at the configured level.
func TestReadyLevel(t *testing.T) {
	for level, want := range map[slog.Level]string{slog.LevelInfo: "level=INFO msg=ready", slog.LevelDebug: "level=DEBUG msg=ready"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			r.cfg.ReadyLevel = level
			r.start(r.engine)
			r.stop()
			if !strings.Contains(r.log.String(), want) {
				t.Errorf("%s lacks %q", r.log.String(), want)
			}
		})
	}
}

// TestCheck: a worker whose check fails never registers, and returns the error; the check is called
// once the engine runs.
func TestCheck(t *testing.T) {
	wrong := errors.New("another tokenizer")
	for _, verdict := range []error{nil, wrong} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			eng := &slow{newMoody(r.engine), make(chan struct{})}
			asked := 0
			r.cfg.Check = func(context.Context) error { asked++; return verdict }
			r.start(eng)
			synctest.Wait()
			if asked != 0 {
				t.Error("it was asked before the engine ran")
			}
			close(eng.started)
			synctest.Wait()
			if n := len(r.registry.Instances()); asked != 1 || (n == 1) != (verdict == nil) {
				t.Errorf("%v: asked %d times, %d instances", verdict, asked, n)
			}
			if verdict == nil {
				r.stop()
			} else if err := <-r.ended; !errors.Is(err, wrong) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}
