package enginetest

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// CacheReplica is the set of cached prefixes that follows from an engine's events, in the simplest
// implementation.
type CacheReplica struct {
	mu struct {
		sync.Mutex
		seqs     map[kv.SeqHash]bool
		restarts int
		changed  chan struct{} // closed at the next change
	}
}

// NewCacheReplica returns an empty replica that has seen no events.
func NewCacheReplica() *CacheReplica {
	r := &CacheReplica{}
	r.mu.changed = make(chan struct{})
	return r
}

// Sink applies events. It fails if they break the contract: the first is not Cleared, a block is stored twice
// or without its parent, or an unknown one is removed.
func (r *CacheReplica) Sink(events []kv.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ev := range events {
		if err := r.applyEvent(ev); err != nil {
			return err
		}
	}
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
	return nil
}

func (r *CacheReplica) applyEvent(ev kv.Event) error {
	if r.mu.seqs == nil && ev.Kind != kv.Cleared {
		return fmt.Errorf("the first event is %v, not cleared", ev.Kind)
	}
	if ev.Kind == kv.Moved || ev.Tier == kv.TierPool {
		return nil // shared memory is not part of this cache
	}
	switch ev.Kind {
	case kv.Cleared:
		r.mu.seqs = make(map[kv.SeqHash]bool)
		r.mu.restarts++
	case kv.Stored:
		if ev.Start > 0 && !r.mu.seqs[ev.Parent] {
			return fmt.Errorf("stored at %d under a parent that is not there", ev.Start)
		}
		parent := ev.Parent
		for i, b := range ev.Blocks {
			parent = kv.ExtendSeq(parent, ev.Start+uint32(i), b)
			if r.mu.seqs[parent] {
				return fmt.Errorf("stored twice at %d", int(ev.Start)+i)
			}
			r.mu.seqs[parent] = true
		}
	case kv.Removed:
		for _, s := range ev.Seqs {
			if !r.mu.seqs[s] {
				return fmt.Errorf("removed what is not there")
			}
			delete(r.mu.seqs, s)
		}
	default:
		return fmt.Errorf("event of kind %v", ev.Kind)
	}
	return nil
}

// Seqs returns a copy of the set, nil before the first event.
func (r *CacheReplica) Seqs() map[kv.SeqHash]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.seqs)
}

// current returns a copy of the set, and a channel that is closed at its next change.
func (r *CacheReplica) current() (seqs map[kv.SeqHash]bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.seqs), r.mu.changed
}

// Restarts returns how many times the replica was cleared.
func (r *CacheReplica) Restarts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.restarts
}

// WaitFor returns nil once ok returns true for the set, which it must not keep or change, or ctx's error.
func (r *CacheReplica) WaitFor(ctx context.Context, ok func(map[kv.SeqHash]bool) bool) error {
	for {
		r.mu.Lock()
		done, changed := ok(r.mu.seqs), r.mu.changed
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// FirstSnapshot returns the set described to a new watcher of src, which must come in one call of its sink.
func FirstSnapshot(ctx context.Context, src engine.KVSource) (map[kv.SeqHash]bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := NewCacheReplica()
	first := r.firstChange()
	watched := make(chan error, 1)
	go func() { watched <- src.WatchKV(ctx, r.Sink) }()
	select {
	case err := <-watched:
		return nil, fmt.Errorf("watch ended by itself: %w", err)
	case <-first:
	}
	cancel()
	<-watched
	return r.Seqs(), nil
}

func (r *CacheReplica) firstChange() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.changed
}
