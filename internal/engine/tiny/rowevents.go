package tiny

import (
	"context"
	"errors"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/engine"
	"penstock/internal/engine/watch"
)

// maxRowBacklog is how many events may wait for one watcher of the rows before it is started over.
const maxRowBacklog = 4 * watch.MinBacklog

// expiryInterval is how often entries whose time has passed are looked for while the rows are watched: otherwise a
// store without requests would go on to tell of them.
const expiryInterval = time.Second

// EmbeddingSource returns the embedding cache of the engine, which is that of all engines made with it, or nil: a
// text-only model has none, nor has a cache without memory.
func (e *Engine) EmbeddingSource() engine.EmbeddingSource { return e.cpu.encoders.source() }

func (s *mediaEncoders) source() engine.EmbeddingSource {
	if s == nil || s.rows.capacity() == 0 {
		return nil
	}
	return s.rows
}

var _ engine.EmbeddingSource = (*rowStore)(nil)

func newRowWatchers() *watch.Broadcaster[embfeed.Event] {
	return watch.New(maxRowBacklog, func(*embfeed.Event) int { return 1 })
}

// WatchEmbeddings implements [engine.EmbeddingSource].
func (s *rowStore) WatchEmbeddings(ctx context.Context, sink func([]embfeed.Event) error) error {
	ending, stop := context.WithCancel(ctx)
	var expiry sync.WaitGroup
	defer expiry.Wait()
	defer stop()
	expiry.Go(func() { s.expireRows(ending) })
	return s.watchers.Watch(ctx, s.describeRows, errStoreEnded, sink)
}

// errStoreEnded is never returned: a store does not end before its watches.
var errStoreEnded = errors.New("tiny: the store of rows has ended")

// expireRows ends entries when their time has passed, until ctx ends.
func (s *rowStore) expireRows(ctx context.Context) {
	tick := time.NewTicker(expiryInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.expireOnce()
		case <-ctx.Done():
			return
		}
	}
}

func (s *rowStore) expireOnce() {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.changes = s.mu.cache.Expire(now, s.mu.changes[:0])
	s.publishChangesLocked()
}

// describeRows gives a description of what is kept to the watchers which need one.
func (s *rowStore) describeRows() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.watchers.NeedsDescription() {
		return
	}
	dump := []embfeed.Event{{Kind: embfeed.Cleared}}
	for _, item := range s.mu.cache.AppendItems(nil) {
		dump = append(dump, newRowEvent(embfeed.Added, &item))
	}
	s.watchers.SendDescription(dump)
}

// publishChangesLocked tells the watchers of mu.changes, and processes which read the memory. The caller does so before it gives up the lock under which
// they happened, so that they arrive in order, an entry's end before anything is written to its memory.
func (s *rowStore) publishChangesLocked() {
	s.listChangesLocked()
	if len(s.mu.changes) == 0 || s.watchers.WatcherCount() == 0 {
		return
	}
	s.mu.events = s.mu.events[:0]
	for i := range s.mu.changes {
		c := &s.mu.changes[i]
		s.mu.events = append(s.mu.events, newRowEvent(eventKinds[c.Cause], &c.Item))
	}
	s.watchers.Publish(s.mu.events)
}

var eventKinds = [...]embfeed.Kind{
	embcache.Added: embfeed.Added, embcache.Evicted: embfeed.Evicted, embcache.Replaced: embfeed.Replaced,
	embcache.Expired: embfeed.Expired, embcache.Removed: embfeed.Removed,
}

func newRowEvent(kind embfeed.Kind, item *embcache.Item) embfeed.Event {
	return embfeed.Event{Kind: kind, Key: item.Key.EventKey(), Rows: uint32(item.Shape.Rows), Bytes: uint64(item.Bytes)}
}
