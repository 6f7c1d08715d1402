package enginetest

import (
	"context"
	"maps"
	"sync"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// testWatch follows an engine from its start through more work than its cache can keep, and expects the set
// that a new watcher gets.
func (s *suite) testWatch(t *testing.T) {
	e, ctx := s.startEngine(t)
	src, ok := e.(engine.KVSource)
	if !ok {
		return
	}
	replica := NewCacheReplica()
	stop := startWatch(t, ctx, src, replica.Sink)
	s.churnCache(t, ctx, e)

	req := s.newRequest(60, 3*s.card.BlockSize+1, 2)
	MustGenerate(t, ctx, e, req)
	for seq := range s.prefixHashes(t, req.Prompt) {
		if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[seq] }); err != nil {
			t.Fatal("a block of the last prompt was never reported")
		}
	}
	s.requireConvergence(t, ctx, src, replica)
	stop()
}

// testSlowWatcher blocks a watcher's sink while the cache changes many times: the engine must continue, and
// the watcher must end with the true set.
func (s *suite) testSlowWatcher(t *testing.T) {
	e, ctx := s.startEngine(t)
	src, ok := e.(engine.KVSource)
	if !ok {
		return
	}
	release := make(chan struct{})
	replica := NewCacheReplica()
	stop := startWatch(t, ctx, src, func(events []kv.Event) error {
		<-release
		return replica.Sink(events)
	})
	s.churnCache(t, ctx, e)
	close(release)
	s.requireConvergence(t, ctx, src, replica)
	stop()
}

// startWatch runs WatchKV until the returned function is called. An error of the sink fails the test.
func startWatch(t *testing.T, ctx context.Context, src engine.KVSource, sink func([]kv.Event) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		// The result says only whether ctx or the sink ended it.
		_ = src.WatchKV(ctx, func(events []kv.Event) error {
			err := sink(events)
			if err != nil {
				t.Errorf("events: %v", err)
			}
			return err
		})
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// churnCache runs requests that fill the cache several times.
func (s *suite) churnCache(t *testing.T, ctx context.Context, e engine.Engine) {
	perRequest := min(s.card.ContextLength/2, 20*s.card.BlockSize)
	n := min(3*s.card.Blocks*s.card.BlockSize/perRequest, 60)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, err := Generate(ctx, e, s.newRequest(uint64(100+i%(n*2/3)), perRequest, 3)); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
		if i%8 == 7 {
			wg.Wait()
		}
	}
	wg.Wait()
}

// requireConvergence waits until a watcher has the same set as a new watcher. Events from another process may
// arrive late at both.
func (s *suite) requireConvergence(t *testing.T, ctx context.Context, src engine.KVSource, replica *CacheReplica) {
	t.Helper()
	truth := NewCacheReplica()
	stop := startWatch(t, ctx, src, truth.Sink)
	defer stop()
	for {
		mine, changed := replica.current()
		theirs, changedToo := truth.current()
		if len(theirs) > 0 && maps.Equal(mine, theirs) {
			return
		}
		select {
		case <-changed:
		case <-changedToo:
		case <-ctx.Done():
			t.Fatalf("the watcher ended with %d blocks, the cache has %d", len(mine), len(theirs))
		}
	}
}

// prefixHashes returns the hashes of all prefixes of prompt that end with a full block.
func (s *suite) prefixHashes(t *testing.T, prompt []kv.Token) map[kv.SeqHash]bool {
	h, err := kv.NewHasher(s.card.BlockSize, kv.Salt{})
	if err != nil {
		t.Fatal(err)
	}
	seqs := map[kv.SeqHash]bool{}
	for _, seq := range h.AppendSeqHashes(nil, prompt, nil) {
		seqs[seq] = true
	}
	return seqs
}
