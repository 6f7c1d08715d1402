package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// history records in order what others see of a worker.
type history struct {
	mu  sync.Mutex
	all []string
}

func (h *history) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.all); n == 0 || h.all[n-1] != what {
		h.all = append(h.all, what)
	}
}

func (h *history) seen() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

// watched is a registry that records registrations and releases.
type watched struct {
	disco.Registry
	*history
}

func (w watched) Register(ctx context.Context, in disco.Instance) (disco.Lease, error) {
	l, err := w.Registry.Register(ctx, in)
	w.note("registered")
	return watchedLease{l, w.history}, err
}

type watchedLease struct {
	disco.Lease
	*history
}

func (l watchedLease) Release(ctx context.Context) error {
	l.note("unregistered")
	return l.Lease.Release(ctx)
}

// notedBus is a bus that records the published states.
type notedBus struct {
	bus.Bus
	*history
}

func (b notedBus) Publish(ctx context.Context, topic bus.Topic, key string, data []byte) error {
	if topic == bus.LoadTopic("penstock") {
		rep, err := engine.DecodeLoadReport(data)
		if err != nil {
			return err
		}
		b.note(rep.State)
	}
	return b.Bus.Publish(ctx, topic, key, data)
}

// follow records the states that the worker reports, until the test ends it.
func (r *rig) follow(h *history) (end func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.bus.Subscribe(ctx, bus.LoadTopic("penstock"), 0, func(m bus.Message) error {
			rep, err := engine.DecodeLoadReport(m.Data)
			h.note(rep.State)
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

// TestDrainOrder: a draining worker first publishes its state, at once, then deregisters, then finishes
// its calls; unfinished calls move to other workers as Draining.
func TestDrainOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Hour})
		r.cfg.DrainTimeout, r.cfg.LoadInterval = 7*time.Second, time.Minute
		h := &history{}
		r.watched = h
		r.start(r.engine)
		addr := r.addr()
		call := make(chan error, 1)
		go func() {
			_, err := r.generate(t.Context(), addr, request(4))
			call <- err
		}()
		synctest.Wait()
		begin := time.Now()
		r.stop()
		if took := time.Since(begin); took != 7*time.Second {
			t.Errorf("it took %v", took)
		}
		if err := <-call; fault.CodeOf(err) != fault.Draining {
			t.Errorf("the call ended with %v, want draining", err)
		}
		got := h.seen()
		slices.Sort(got[:2]) // these two do not wait for each other
		if want := []string{"ready", "registered", "draining", "unregistered"}; !slices.Equal(got, want) {
			t.Errorf("others saw %q, want %q", got, want)
		}
	})
}

// TestReplaced: a worker whose registration another process has replaced finishes its calls, takes no
// new ones, and returns an error that says why.
func TestReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Second})
		registry := disco.NewMemRegistry()
		r.startOn(r.engine, registry)
		defer r.cancel()
		addr, _ := r.w.RegisteredAddr()
		call := make(chan error, 1)
		go func() {
			tokens, err := r.generate(t.Context(), addr, request(4))
			if err == nil && len(tokens) != 5 {
				err = fmt.Errorf("%d tokens", len(tokens))
			}
			call <- err
		}()
		synctest.Wait()
		other, err := registry.Register(t.Context(), disco.Instance{Kind: disco.KindWorker, ID: r.cfg.ID, Epoch: r.cfg.Epoch + 1})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if state := r.w.Health().State; state != engine.StateDraining {
			t.Errorf("it is %s, want draining", state)
		}
		if _, err := r.generate(t.Context(), addr, request(4)); fault.CodeOf(err) != fault.Draining {
			t.Errorf("a new call: %v, want draining", err)
		}
		if err := <-call; err != nil {
			t.Errorf("the running call: %v", err)
		}
		select {
		case err = <-r.ended:
		case <-time.After(time.Minute):
			t.Fatal("it goes on unregistered")
		}
		if fault.CodeOf(err) != fault.Conflict || !errors.Is(err, worker.ErrReplaced) || !strings.Contains(err.Error(), "another --worker-id") {
			t.Errorf("Run: %v, want a conflict that says what to do", err)
		}
		if err := other.Update(t.Context(), disco.Instance{Kind: disco.KindWorker, ID: r.cfg.ID, Epoch: r.cfg.Epoch + 1}); err != nil {
			t.Errorf("the registration of the other: %v", err)
		}
	})
}

// TestLinger: a worker without calls runs on for Linger, to refuse calls as Draining.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.Linger = 2 * time.Second
		r.start(r.engine)
		addr := r.addr()
		begin := time.Now()
		r.cancel()
		synctest.Wait()
		if _, err := r.generate(t.Context(), addr, request(4)); fault.CodeOf(err) != fault.Draining {
			t.Errorf("a call meanwhile: %v, want draining", err)
		}
		if err := r.rpc.Call(t.Context(), addr, engine.MethodPing, nil, func([]byte) error { return nil }); err != nil {
			t.Errorf("a ping meanwhile: %v", err)
		}
		r.stop()
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestDrainWithoutBus: a bus that blocks the report delays the drain only for announceTimeout.
func TestDrainWithoutBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		slow := &stuckBus{Bus: r.bus}
		w, err := worker.New(r.cfg, r.engine, worker.Planes{RPC: r.rpc, Bus: slow, Registry: r.registry}, worker.NewMetrics(obs.NewMetrics()), discard)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		synctest.Wait()
		begin := time.Now()
		cancel()
		if err := <-ended; err != nil || time.Since(begin) != time.Second {
			t.Errorf("it ended after %v: %v", time.Since(begin), err)
		}
	})
}

// stuckBus is a bus on which publishing hangs.
type stuckBus struct{ bus.Bus }

func (b *stuckBus) Publish(ctx context.Context, _ bus.Topic, _ string, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}
