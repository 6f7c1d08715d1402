package worker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/serve/servetest"
)

// worried is an engine with warnings and adapters.
type worried struct {
	*servetest.Engine
	mu       sync.Mutex
	warnings []engine.Warning
	lists    chan []string // for the watchers of its adapters
	kinds    chan []string // for the watchers of its media counts
}

func (e *worried) Warnings() []engine.Warning {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]engine.Warning(nil), e.warnings...)
}

func (e *worried) LoadedAdapters() []string { return []string{"style"} }

func (e *worried) WatchAdapters(ctx context.Context, sink func([]string)) error {
	return tell(ctx, e.lists, sink)
}

func (e *worried) WatchMediaCounts(ctx context.Context, sink func([]string)) error {
	return tell(ctx, e.kinds, sink)
}

func tell(ctx context.Context, lists chan []string, sink func([]string)) error {
	for {
		select {
		case list := <-lists:
			sink(list)
		case <-ctx.Done():
			return nil
		}
	}
}

func (e *worried) say(w ...engine.Warning) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.warnings = w
}

// TestWarnings: an engine's warnings and loaded adapters are in its worker's reports, pongs and
// metrics, while they last.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		eng := &worried{Engine: r.engine}
		r.start(eng)
		defer r.stop()
		report := func() (last engine.LoadReport) {
			err := r.rpc.Call(t.Context(), r.addr(), engine.MethodPing, nil, func(frame []byte) error {
				p, err := engine.DecodePong(frame)
				last = p.LoadReport
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return last
		}
		if got := report(); len(got.Warnings) != 0 || len(got.Adapters) != 1 || got.Adapters[0] != "style" {
			t.Errorf("%+v", got)
		}

		published := make(chan engine.LoadReport, 8)
		stop := follow(r, published)
		defer stop()
		eng.say(engine.Warning{Code: engine.WarnNoEvents, Detail: strings.Repeat("long ", 1000), Remedy: "turn them on"}, engine.Warning{Code: "x"}, engine.Warning{Code: "x"})
		<-time.After(time.Second)
		got := <-published
		if len(got.Warnings) != 3 || got.Warnings[0].Code != engine.WarnNoEvents || len(got.Warnings[0].Detail) > 400 || got.Warnings[0].Remedy != "turn them on" {
			t.Errorf("%+v", got.Warnings)
		}
		if n, m := r.metric(`worker_warnings{code="no_kv_events",worker="7"}`), r.metric(`worker_warnings{code="x",worker="7"}`); n != "1" || m != "2" {
			t.Errorf("%s and %s warnings", n, m)
		}
		eng.say()
		<-time.After(time.Second)
		if got := <-published; len(got.Warnings) != 0 {
			t.Errorf("%+v", got.Warnings)
		}
		if n := r.metric(`worker_warnings{code="no_kv_events",worker="7"}`); n != "" {
			t.Errorf("%s warnings", n)
		}
	})
}

// follow forwards the worker's load reports until the returned function is called.
func follow(r *rig, into chan<- engine.LoadReport) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.bus.Subscribe(ctx, bus.LoadTopic("penstock"), 0, func(m bus.Message) error {
			rep, err := engine.DecodeLoadReport(m.Data)
			into <- rep
			return err
		}, nil)
	}()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}
