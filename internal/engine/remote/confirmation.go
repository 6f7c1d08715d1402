package remote

import (
	"context"
	"slices"
	"time"

	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/internal/zmtp"
)

// The limits of a confirmation: its duration, and the feed batches held back meanwhile.
const (
	confirmTimeout = 10 * time.Second
	maxHeld        = 4096
	maxHeldBytes   = 32 << 20
)

// confirmation preserves the known content of an engine's cache after batches of its events were lost for
// good. It asks the engine for the hashes of all its blocks; blocks without a hash in the answer are gone,
// the others are still cached. The answer describes one moment of the feed, which a barrier message in the
// feed marks: batches after the barrier are held back until the answer is complete.
//
// Blocks stored in the lost batches stay unknown, since the answer has no tokens.
type confirmation struct {
	snapshot *engineevents.Snapshot // complete; nil before
	barrier  string                 // of the barrier message in the feed; "" before it
	held     [][]byte
	bytes    int
	decided  chan struct{} // closed when it is decided
}

// startConfirmation starts a confirmation in a goroutine that run waits for. It reports whether the engine
// has an endpoint for it.
func (f *eventFeed) startConfirmation() bool {
	if f.cfg.Snapshot.IsZero() || f.confirming != nil || f.ctx.Err() != nil {
		return false
	}
	c := &confirmation{decided: make(chan struct{})}
	f.confirming = c
	f.replays.Go(func() {
		ctx, cancel := context.WithTimeout(f.ctx, confirmTimeout)
		defer cancel()
		snapshot, err := f.fetchSnapshot(ctx)
		if err == nil {
			f.cache.applyChange(func(out []kv.Event) []kv.Event {
				c.snapshot = snapshot
				return f.decideLocked(c, out)
			})
			select {
			case <-c.decided:
				return
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		f.cfg.Log.Info("the engine does not say what it has cached; what was known of it is forgotten", "endpoint", f.cfg.Snapshot.String(), "error", err)
		f.cache.applyChange(func(out []kv.Event) []kv.Event { return f.abandonLocked(c, out) })
	})
	return true
}

// fetchSnapshot asks for the hashes of all blocks of the engine.
func (f *eventFeed) fetchSnapshot(ctx context.Context) (*engineevents.Snapshot, error) {
	dealer, err := zmtp.DialDealer(ctx, f.cfg.Snapshot, zmtp.Options{})
	if err != nil {
		return nil, err
	}
	defer dealer.Close()
	if err := dealer.Send(ctx, engineevents.SnapshotRequest()...); err != nil {
		return nil, err
	}
	s := &engineevents.Snapshot{}
	for {
		frames, err := dealer.Recv(ctx)
		if err != nil {
			return nil, err
		}
		if whole, err := s.AddMessage(frames); err != nil || whole {
			return s, err
		}
	}
}

// holdBatch holds back a batch that comes after the barrier. ok is false if there is no room for it.
func (c *confirmation) holdBatch(payload []byte) (ok bool) {
	if len(c.held) >= maxHeld || c.bytes+len(payload) > maxHeldBytes {
		return false
	}
	c.held, c.bytes = append(c.held, slices.Clone(payload)), c.bytes+len(payload)
	return true
}

// noteBarrier records the barrier message that marks a moment of the feed.
func (f *eventFeed) noteBarrier(id string, out []kv.Event) []kv.Event {
	c := f.confirming
	if c == nil || c.snapshot != nil && c.snapshot.Header.BarrierID != id {
		return out
	}
	c.barrier = id
	return f.decideLocked(c, out)
}

// decideLocked removes the blocks which the snapshot does not name, once both the snapshot and its barrier
// have arrived.
func (f *eventFeed) decideLocked(c *confirmation, out []kv.Event) []kv.Event {
	if f.confirming != c || c.snapshot == nil {
		return out
	}
	next, ok := f.machine.Next()
	switch {
	case c.barrier == "" && !(ok && next == c.snapshot.Header.Resume):
		return out // the barrier has not arrived yet
	case c.barrier != "" && c.barrier != c.snapshot.Header.BarrierID:
		return f.abandonLocked(c, out) // this is the barrier of another client's snapshot
	}
	f.confirmed++
	return f.applyHeldLocked(c, f.table.TrimToSnapshot(c.snapshot, out))
}

// abandonLocked clears the known content of the cache.
func (f *eventFeed) abandonLocked(c *confirmation, out []kv.Event) []kv.Event {
	if f.confirming != c {
		return out
	}
	return f.applyHeldLocked(c, f.table.Clear(out))
}

// applyHeldLocked applies the batches held back.
func (f *eventFeed) applyHeldLocked(c *confirmation, out []kv.Event) []kv.Event {
	f.confirming = nil
	close(c.decided)
	for _, payload := range c.held {
		if err := f.decodeBatch(payload); err != nil {
			if f.unreadable.record() {
				f.cfg.Log.Warn("a batch of the engine's cache events cannot be read; what was known of its cache is forgotten", "endpoint", f.cfg.Events.String(), "error", err)
			}
			out = f.table.Clear(out)
			continue
		}
		out = f.table.Apply(&f.batch, out)
	}
	return out
}
