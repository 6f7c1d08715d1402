package worker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/engine"
	"penstock/internal/engine/watch"
	"penstock/internal/holders"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/serve/servetest"
)

// embeddingCache is an embedding cache of keys without rows.
type embeddingCache struct {
	watchers *watch.Broadcaster[embfeed.Event]
	mu       struct {
		sync.Mutex
		held []kv.Digest // the oldest first
	}
}

func newEmbeddingCache(backlog int) *embeddingCache {
	return &embeddingCache{watchers: watch.New(backlog, func(*embfeed.Event) int { return 1 })}
}

func embeddingKey(n int) (d kv.Digest) {
	binary.BigEndian.PutUint64(d[:], uint64(n)+1)
	return d
}

func (c *embeddingCache) WatchEmbeddings(ctx context.Context, sink func([]embfeed.Event) error) error {
	return c.watchers.Watch(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		dump := []embfeed.Event{{Kind: embfeed.Cleared}}
		for _, key := range c.mu.held {
			dump = append(dump, embfeed.Event{Kind: embfeed.Added, Key: key, Rows: 1, Bytes: 64})
		}
		c.watchers.SendDescription(dump)
	}, errors.New("ended"), sink)
}

// toggle adds an entry, or ends it if it is held.
func (c *embeddingCache) toggle(n int) {
	key := embeddingKey(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := embfeed.Added
	if at := slices.Index(c.mu.held, key); at >= 0 {
		kind = embfeed.Evicted
		c.mu.held = slices.Delete(c.mu.held, at, at+1)
	} else {
		c.mu.held = append(c.mu.held, key)
	}
	c.watchers.Publish([]embfeed.Event{{Kind: kind, Key: key, Rows: 1, Bytes: 64}})
}

func (c *embeddingCache) holds(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.mu.held, embeddingKey(n))
}

// collectEmbeddings appends the records of the topic to a list until the test ends.
func (r *rig) collectEmbeddings() func() []embfeed.EventRecord {
	r.t.Helper()
	var mu sync.Mutex
	var got []embfeed.EventRecord
	ctx, stop := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.bus.Subscribe(ctx, bus.EmbeddingEventsTopic("penstock", "backend"), 0, func(m bus.Message) error {
			var rec embfeed.EventRecord
			if err := embfeed.DecodeRecord(&rec, m.Data); err != nil || m.Key != engine.WorkerKey(rec.Worker) {
				return errors.Join(err, errors.New("under the key "+m.Key))
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, rec)
			return nil
		}, nil)
	}()
	r.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	return func() []embfeed.EventRecord {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

// TestEmbeddingEvents: the events are numbered from 1, which clears; a reader gets the last ones again by their
// numbers, or else the whole cache; the load report says how far they are.
func TestEmbeddingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		cache := newEmbeddingCache(watch.MinBacklog)
		cache.toggle(1)
		r.cfg.Embeddings = cache
		records := r.collectEmbeddings()
		r.start(r.engine)
		defer r.stop()
		cache.toggle(2)
		time.Sleep(time.Second) // virtual time (synctest): each change gets a record of its own
		cache.toggle(1)
		time.Sleep(time.Second) // virtual time (synctest): the last record is published
		event := func(kind embfeed.Kind, n int) embfeed.Event {
			return embfeed.Event{Kind: kind, Key: embeddingKey(n), Rows: 1, Bytes: 64}
		}
		w := kv.Worker{ID: 7}
		want := []embfeed.EventRecord{
			{Worker: w, Epoch: 3, First: 1, Events: []embfeed.Event{{Kind: embfeed.Cleared}, event(embfeed.Added, 1)}},
			{Worker: w, Epoch: 3, First: 3, Events: []embfeed.Event{event(embfeed.Added, 2)}},
			{Worker: w, Epoch: 3, First: 4, Events: []embfeed.Event{event(embfeed.Evicted, 1)}},
		}
		if diff := cmp.Diff(want, records()); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
		if h := r.w.Health(); h.EmbeddingNext != 5 || h.EmbeddingAttempted != 0 || h.KVNext == 5 {
			t.Errorf("%+v", h)
		}
		ask := func(q kvfeed.ResyncRequest) {
			t.Helper()
			q.Worker = w
			if err := r.bus.Publish(t.Context(), bus.EmbeddingResyncTopic("penstock"), "7/0", kvfeed.AppendRequest(nil, q)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second) // virtual time (synctest): the request is answered
		}
		ask(kvfeed.ResyncRequest{Epoch: 3, From: 4})
		want = append(want, want[2])
		if diff := cmp.Diff(want, records()); diff != "" {
			t.Fatalf("asked for event 4: -want +got\n%s", diff)
		}
		ask(kvfeed.ResyncRequest{Epoch: 3, From: 99})
		want = append(want, embfeed.EventRecord{Worker: w, Epoch: 3, First: 5, Events: []embfeed.Event{{Kind: embfeed.Cleared}, event(embfeed.Added, 2)}})
		if diff := cmp.Diff(want, records()); diff != "" {
			t.Fatalf("asked for what it does not have: -want +got\n%s", diff)
		}
		if card, err := engine.DecodeCard(r.registry.Instances()[0].Meta); err != nil || !card.EmbeddingEvents {
			t.Errorf("the card does not say that there are events: %v", err)
		}
	})
}

// TestHoldersFollow: whatever was lost, doubled, delayed or refused between worker and reader, in the end the reader
// knows what the cache holds.
func TestHoldersFollow(t *testing.T) {
	var gaps, repairs uint64
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			rng := rand.New(rand.NewPCG(seed, 1))
			cache := newEmbeddingCache(32) // small, so that the watcher is started over too
			r.cfg.Embeddings = cache
			faults := bustest.BusFaults{
				Topics: []string{bus.EmbeddingEventsTopic("penstock", "backend").Name, bus.EmbeddingResyncTopic("penstock").Name},
				Fail:   0.1, Lose: 0.1, Drop: 0.1, Duplicate: 0.1, Reorder: 0.1, Delay: 20 * time.Millisecond,
			}
			r.bus.Set(faults)
			x, err := holders.New(holders.Config{FollowReports: true}, r.bus, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- x.Run(ctx) }()
			r.start(r.engine)
			w := kv.Worker{ID: 7}
			x.SetWorkers([]holders.Worker{{Worker: w, Epoch: 3}})
			for range 600 {
				cache.toggle(rng.IntN(40))
				time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond) // virtual time (synctest): changes come at varying intervals
				if err := x.Check(); err != nil {
					t.Fatal(err)
				}
			}
			r.bus.Set(bustest.BusFaults{})
			time.Sleep(time.Minute) // virtual time (synctest): a lost tail shows in the load reports
			synctest.Wait()
			for n := range 40 {
				key := embeddingKey(n)
				if got := slices.Contains(x.AppendHolders(nil, &key), w); got != cache.holds(n) {
					t.Errorf("seed %d: entry %d is held: %t, the reader says %t", seed, n, cache.holds(n), got)
				}
			}
			s := x.Stats()
			if s.States[kvfeed.Live] != 1 {
				t.Errorf("seed %d: %+v", seed, s)
			}
			gaps, repairs = gaps+s.Gaps, repairs+s.Repaired+s.Described+s.GivenUp
			x.SetWorkers(nil)
			if s := x.Stats(); s.Holdings != 0 || s.Workers != 0 {
				t.Errorf("seed %d: the worker is gone: %+v", seed, s)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			r.stop()
		})
	}
	if gaps == 0 || repairs == 0 {
		t.Errorf("%d gaps and %d repairs: the faults do not show", gaps, repairs)
	}
}

// TestHoldersStartLate: a reader which starts later reads what the event plane kept, and asks nothing.
func TestHoldersStartLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		cache := newEmbeddingCache(watch.MinBacklog)
		r.cfg.Embeddings = cache
		r.start(r.engine)
		defer r.stop()
		for n := range 20 {
			cache.toggle(n)
			time.Sleep(100 * time.Millisecond) // virtual time (synctest): each change gets a record of its own
		}
		asked := 0
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() {
			ended <- r.bus.Subscribe(ctx, bus.EmbeddingResyncTopic("penstock"), 0, func(bus.Message) error { asked++; return nil }, nil)
		}()
		x, err := holders.New(holders.Config{}, r.bus, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- x.Run(ctx) }()
		x.SetWorkers([]holders.Worker{{Worker: kv.Worker{ID: 7}, Epoch: 3}})
		time.Sleep(10 * time.Second) // virtual time (synctest): the reader catches up
		synctest.Wait()
		if s := x.Stats(); s.Keys != 20 || s.States[kvfeed.Live] != 1 || asked != 0 {
			t.Errorf("%+v, %d requests", s, asked)
		}
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}
