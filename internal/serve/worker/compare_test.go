package worker_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
)

// neighbour registers another worker; alive ones answer pings.
func (r *rig) neighbour(in disco.Instance, alive bool, change func(*engine.Card)) {
	r.t.Helper()
	card := servetest.ModelCard("m")
	change(&card)
	meta, err := engine.EncodeCard(card)
	if err != nil {
		r.t.Fatal(err)
	}
	in.Kind, in.Epoch, in.Meta = disco.KindWorker, 1, meta
	if alive {
		ctx, cancel := context.WithCancel(r.t.Context())
		ready, served := make(chan string, 1), make(chan error, 1)
		go func() {
			served <- r.rpc.Serve(ctx, "", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
				return send([]byte("{}"))
			}, func(addr string) { ready <- addr })
		}()
		in.Addr = <-ready
		r.t.Cleanup(func() { cancel(); <-served })
	}
	r.registry.Set(in)
}

// TestRefusesToDiffer: a worker does not start if another serves the same name with a different card;
// the error names the difference, the worker and its host.
func TestRefusesToDiffer(t *testing.T) {
	same := func(*engine.Card) {}
	shorter := func(c *engine.Card) { c.ContextLength = 100 }
	here := disco.Instance{ID: 5, Namespace: "penstock", Component: "backend", Host: "node-5", PID: 55}
	elsewhere := here
	elsewhere.Component = "other"
	doubtful := here
	doubtful.Unconfirmed = true
	itself := here
	itself.ID = 7
	for name, c := range map[string]struct {
		prepare func(*rig)
		refused bool
	}{
		"the same":            {func(r *rig) { r.neighbour(here, true, same) }, false},
		"differs":             {func(r *rig) { r.neighbour(here, true, shorter) }, true},
		"differs and is dead": {func(r *rig) { r.neighbour(here, false, shorter) }, false},
		"unconfirmed":         {func(r *rig) { r.neighbour(doubtful, true, shorter) }, false},
		"another component":   {func(r *rig) { r.neighbour(elsewhere, true, shorter) }, false},
		"another model": {func(r *rig) {
			r.neighbour(here, true, func(c *engine.Card) { c.Name, c.ContextLength = "n", 100 })
		}, false},
		"a life before": {func(r *rig) { r.neighbour(itself, true, shorter) }, false},
		"one of each": {func(r *rig) {
			r.neighbour(here, true, shorter)
			second := here
			second.ID = 6
			r.neighbour(second, true, same)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, servetest.Config{})
				c.prepare(r)
				r.start(r.engine)
				if !c.refused {
					if n := len(r.registry.Instances()); n == 0 || !strings.Contains(r.log.String(), "msg=ready") {
						t.Errorf("not registered: %s", r.log.String())
					}
					r.stop()
					return
				}
				err := <-r.ended
				r.cancel()
				if err == nil || !strings.Contains(err.Error(), "context_length is 1048576 here and 100 at worker 5 on node-5 (pid 55)") {
					t.Errorf("Run: %v", err)
				}
				if n := len(r.registry.Instances()); n != 1 {
					t.Errorf("%d instances are registered", n)
				}
			})
		})
	}
}

// mute is a registry whose store cannot be read.
type mute struct{ *servetest.Registry }

func (mute) Watch(ctx context.Context, _ disco.Kind, _ func([]disco.Instance)) error {
	<-ctx.Done()
	return nil
}

// TestStartsWithoutStore: a worker waits briefly for a store that does not answer, then starts.
func TestStartsWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		started := time.Now()
		r.startOn(r.engine, mute{r.registry})
		<-r.registry.Changed()
		if took := time.Since(started); took > 5*time.Second || len(r.registry.Instances()) != 1 {
			t.Errorf("after %v: %v", took, r.registry.Instances())
		}
		r.stop()
	})
}
