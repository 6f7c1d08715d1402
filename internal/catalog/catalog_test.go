package catalog_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
)

func listed(t *testing.T, id kv.WorkerID, context int) disco.Instance {
	t.Helper()
	card := servetest.ModelCard("m")
	card.ContextLength = context
	return registered(t, id, card)
}

func registered(t *testing.T, id kv.WorkerID, card engine.Card) disco.Instance {
	t.Helper()
	meta, err := engine.EncodeCard(card)
	if err != nil {
		t.Fatal(err)
	}
	return disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta}
}

// TestAppliedBeforeSeen: at no moment does a reader see a snapshot which is not applied yet, and each
// snapshot says when there is a newer one.
func TestAppliedBeforeSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := servetest.NewRegistry()
		c := catalog.New(catalog.Selection{}, registry, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer parts.Wait()
		defer stop()
		seen := 0
		parts.Go(func() {
			for s := c.Current(); ; s = c.Current() {
				if s.WorkerEpoch(1); len(s.Workers) > 0 {
					seen++
				}
				select {
				case <-s.Superseded():
				case <-ctx.Done():
					return
				}
			}
		})
		synctest.Wait()
		select {
		case <-c.Loaded():
			t.Fatal("loaded before the registry is read")
		default:
		}
		var applied atomic.Pointer[catalog.Snapshot]
		parts.Go(func() {
			c.Run(ctx, func(s *catalog.Snapshot) {
				if c.Current() == s {
					t.Error("a snapshot is seen before it is applied")
				}
				applied.Store(s)
			})
		})
		synctest.Wait()
		<-c.Loaded()
		for id := range kv.WorkerID(5) {
			registry.Set(listed(t, id+1, 100))
			synctest.Wait()
			if s := c.Current(); s != applied.Load() || len(s.Workers) != int(id)+1 || len(s.Find("m").Workers) != int(id)+1 {
				t.Errorf("with %d workers %+v is seen, %+v was applied", id+1, s, applied.Load())
			}
		}
		if seen < 5 {
			t.Errorf("%d snapshots with workers were seen, want at least 5", seen)
		}
	})
}

// runLogged runs a catalog of a registry until stop. Its log is whole when all goroutines of the bubble are idle.
func runLogged(t *testing.T, registry disco.Registry) (c *catalog.Catalog, log *bytes.Buffer, stop func()) {
	t.Helper()
	log = new(bytes.Buffer)
	c = catalog.New(catalog.Selection{}, registry, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx, func(*catalog.Snapshot) {}) })
	return c, log, func() { cancel(); running.Wait() }
}

// brokenRegistry is a registry whose watches fail while err is set.
type brokenRegistry struct {
	*servetest.Registry
	err     atomic.Pointer[error]
	watches atomic.Int32
}

func (r *brokenRegistry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	r.watches.Add(1)
	if err := r.err.Load(); err != nil {
		return *err
	}
	return r.Registry.Watch(ctx, kind, sink)
}

// TestRegistryFails: a failing registry is watched again, and the last snapshot stays until it answers.
func TestRegistryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := &brokenRegistry{Registry: servetest.NewRegistry()}
		broken := errors.New("the store is broken")
		registry.err.Store(&broken)
		c, log, stop := runLogged(t, registry)
		registry.Set(listed(t, 1, 100))
		time.Sleep(time.Minute) // virtual time (synctest): watches fail and begin again
		synctest.Wait()
		if n := registry.watches.Load(); n < 8 || n > 100 || len(c.Current().Workers) != 0 {
			t.Errorf("%d watches, %d workers", n, len(c.Current().Workers))
		}
		registry.err.Store(nil)
		time.Sleep(8 * time.Second) // virtual time (synctest): longer than the longest wait
		synctest.Wait()
		if len(c.Current().Workers) != 1 {
			t.Error("the registry is not watched again")
		}
		stop()
		if n := strings.Count(log.String(), "the watch of workers ended; it begins again"); n < 2 || n > 10 || !strings.Contains(log.String(), "the store is broken") {
			t.Errorf("logged %d times: %s", n, log.String())
		}
	})
}

// TestFindingsAreLoggedOnce: what is wrong with a worker is logged once, and again when it changes.
func TestFindingsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := servetest.NewRegistry()
		_, log, stop := runLogged(t, registry)
		defer stop()
		broken := listed(t, 3, 100)
		broken.Meta = []byte("{}")
		for _, step := range []struct {
			in   disco.Instance
			want string // the only record
		}{
			{listed(t, 1, 100), ""},
			{listed(t, 2, 200), "worker=2 model=m host=\"\" reason=\"its model card differs from the one served as m: context_length is 200 here and 100 there"},
			{broken, "worker=3 model=\"\" host=\"\" reason=\"model card: name"},
			{listed(t, 4, 100), ""},
			{listed(t, 2, 300), "context_length is 300 here"},
		} {
			log.Reset()
			registry.Set(step.in)
			synctest.Wait()
			if got := log.String(); (got == "") != (step.want == "") || !strings.Contains(got, step.want) || strings.Count(got, "a worker gets no requests") != min(1, len(step.want)) {
				t.Errorf("worker %d: %q, want %q", step.in.ID, got, step.want)
			}
		}
	})
}

// TestAliasClashesAreLoggedOnce: an alias which two models have is logged once, with both.
func TestAliasClashesAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := servetest.NewRegistry()
		_, log, stop := runLogged(t, registry)
		defer stop()
		for id, name := range []string{"m", "n", "m", "n"} {
			card := servetest.ModelCard(name)
			card.Aliases = []string{"large"}
			registry.Set(registered(t, kv.WorkerID(id+1), card))
			synctest.Wait()
		}
		const want = "an alias of a model leads to another model"
		if got := log.String(); strings.Count(got, want) != 1 || !strings.Contains(got, "alias=large model=n leads_to=m") {
			t.Errorf("logged %q, want %q once", got, want)
		}
	})
}
