package tiny

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/embcache"
	"penstock/core/kvfeed/embfeed"
	"penstock/core/media"
)

// watchRows collects the events of the engine's embedding cache until the test ends. Call it in a bubble.
func watchRows(t *testing.T, e *Engine) (events func() []embfeed.Event) {
	t.Helper()
	var mu sync.Mutex
	var got []embfeed.Event
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- e.EmbeddingSource().WatchEmbeddings(ctx, func(events []embfeed.Event) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, events...)
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func() []embfeed.Event {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

// TestRowEvents: a watcher gets what can be read, then every change in order, under keys which tell nothing of salts.
// The cache has room for two pictures of 4 rows.
func TestRowEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := seeing(t, func(c *Config) { c.EmbeddingCache = new(2 * 4 * 32 * elementBytes) })
		event := func(kind embfeed.Kind, o *media.Object, salt string) embfeed.Event {
			return embfeed.Event{Kind: kind, Key: embcache.EventKey(e.Card().Encoder, salt, o.Key.Digest), Rows: 4, Bytes: 4 * 32 * elementBytes}
		}
		one, two := noise(media.Image, 1, 56, 56, 3), noise(media.Image, 2, 56, 56, 3)
		rowsOf(t, e, &one, "", 4)
		first := watchRows(t, e)
		rowsOf(t, e, &one, "salt", 4)
		rowsOf(t, e, &one, "salt", 4)
		second := watchRows(t, e)
		second()
		rowsOf(t, e, &two, "", 4)
		key := e.cpu.encoders.rows.keyOf(&two, "")
		s := e.cpu.encoders.rows
		s.mu.Lock()
		s.mu.changes = s.mu.cache.Remove(&key, s.mu.changes[:0])
		s.publishChangesLocked()
		s.mu.Unlock()
		want := []embfeed.Event{
			{Kind: embfeed.Cleared},
			event(embfeed.Added, &one, ""), event(embfeed.Added, &one, "salt"),
			event(embfeed.Evicted, &one, ""), event(embfeed.Added, &two, ""), event(embfeed.Removed, &two, ""),
		}
		if diff := cmp.Diff(want, first()); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		if diff := cmp.Diff(want, second()); diff != "" {
			t.Errorf("a later watcher: -want +got\n%s", diff)
		}
		for _, ev := range first() {
			if bytes.Equal(ev.Key[:], one.Key.Digest[:]) {
				t.Error("an event has the digest of an object")
			}
		}
	})
}

// TestEventsOfURLs: an entry whose time has passed is reported, though no request asks for it.
func TestEventsOfURLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := seeing(t, func(c *Config) { c.URLTTL = time.Hour })
		o := noise(media.Image, 1, 56, 56, 3)
		o.Source, o.Identity = "https://example.com/cat.png", media.ByURL
		period, _ := media.URLPeriod(o.Source, time.Now().UnixNano(), time.Hour)
		o.Key = media.URLKey(o.Source, period)
		events := watchRows(t, e)
		rowsOf(t, e, &o, "", 4)
		if got := events(); len(got) != 2 || got[1].Kind != embfeed.Added {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Hour + 2*expiryInterval) // virtual time (synctest): the URL's period of an hour ends
		if got := events(); len(got) != 3 || got[2].Kind != embfeed.Expired || got[2].Key != got[1].Key {
			t.Errorf("after its period: %+v", got)
		}
	})
}

// TestSlowWatcherOfRows: a watcher which does not keep up is started over and holds up no request.
func TestSlowWatcherOfRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := seeing(t, func(c *Config) { c.EmbeddingCache = new(4 * 32 * elementBytes) })
		var got []embfeed.Event
		release := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- e.EmbeddingSource().WatchEmbeddings(ctx, func(events []embfeed.Event) error {
				<-release
				got = append(got, events...)
				return nil
			})
		}()
		synctest.Wait()
		o := noise(media.Image, 1, 56, 56, 3)
		for i := range maxRowBacklog {
			o.Key.Digest[0], o.Key.Digest[1] = byte(i), byte(i>>8)
			s := e.cpu.encoders.rows
			key := s.keyOf(&o, "")
			r := s.storeRows(&key, &o, make([]float32, 4*32), [3]int{})
			s.releaseRows(&r)
		}
		close(release)
		synctest.Wait()
		key := e.cpu.encoders.rows.keyOf(&o, "")
		if n := len(got); n != 3 || got[0].Kind != embfeed.Cleared || got[1].Kind != embfeed.Cleared || got[2].Key != key.EventKey() {
			t.Errorf("%d events: %+v", n, got[:min(n, 4)])
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestNoEmbeddingSource: a cache without memory has nothing to tell.
func TestNoEmbeddingSource(t *testing.T) {
	if e := seeing(t, func(c *Config) { c.EmbeddingCache = new(0) }); e.EmbeddingSource() != nil {
		t.Error("a cache of 0 bytes has events")
	}
	if e := seeing(t, nil); e.EmbeddingSource() == nil {
		t.Error("a cache has no events")
	}
}
