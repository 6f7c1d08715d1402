package router

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"penstock/core/fault"
)

// snapshotsKept is the number of snapshots kept. The stream is purged up to the oldest of them, so that
// a replica that cannot read the newest one, or reads the stream slower than it is written, finds what
// it needs.
const snapshotsKept = 2

// snapshotState describes the newest snapshot in the archive.
type snapshotState struct {
	mu struct {
		sync.Mutex
		newest streamPosition
		taken  int64     // as its header says; 0 if there is none
		seen   time.Time // when it was found to be the newest
		size   int
	}
}

// setNewest records the newest snapshot.
func (s *snapshotState) setNewest(at streamPosition, taken int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.newest, s.mu.taken, s.mu.seen = at, taken, time.Now()
}

// isDue reports whether the content at a position is worth a snapshot: enough messages arrived since
// the last one, or any did and it is old.
func (s *snapshotState) isDue(at streamPosition, threshold uint64, interval time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch newest := s.mu.newest; {
	case at.life == 0 || at == newest:
		return false
	case at.life != newest.life || at.seq < newest.seq: // another life, or the stream lost its end
		return true
	default:
		return at.seq-newest.seq >= threshold || time.Since(s.mu.seen) >= interval
	}
}

// age returns the age of the newest snapshot; ok is false if none is known.
func (s *snapshotState) age() (age time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.taken == 0 {
		return 0, false
	}
	return max(time.Since(time.UnixMilli(s.mu.taken)), 0), true
}

// runSnapshots writes snapshots until ctx ends. It retries after a failure with growing waits, since
// events wait for each encoding.
func (r *Router) runSnapshots(ctx context.Context) {
	wait := r.cfg.Snapshots.Look
	look := time.NewTimer(wait)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		wait = r.writeDueSnapshot(ctx, wait)
		look.Reset(wait)
	}
}

// writeDueSnapshot writes a snapshot if one is due, and returns the time until the next check; waited
// is the previous wait.
func (r *Router) writeDueSnapshot(ctx context.Context, waited time.Duration) time.Duration {
	if !r.caughtUp.Load() || !r.isSnapshotDue() {
		return r.cfg.Snapshots.Look
	}
	err := r.writeSnapshotLeased(ctx)
	if err == nil || ctx.Err() != nil {
		return r.cfg.Snapshots.Look
	}
	r.metrics.snapshots.failed.Inc()
	r.throttle.Log(ctx, slog.LevelWarn, "no snapshot was written, trying again", "error", err)
	return max(r.cfg.Snapshots.Look, min(2*waited, r.cfg.Snapshots.Interval))
}

func (r *Router) isSnapshotDue() bool {
	return r.snapshots.isDue(r.cache.position(), r.cfg.Snapshots.Threshold, r.cfg.Snapshots.Interval)
}

// writeSnapshotLeased writes a snapshot as the archive's only writer, if one is still due.
func (r *Router) writeSnapshotLeased(ctx context.Context) error {
	err := r.planes.Archive.Lock(ctx, r.snapshotPrefix()+"writer", func(ctx context.Context, _ uint64) error {
		if err := r.refreshNewest(ctx); err != nil || !r.isSnapshotDue() {
			return err
		}
		if late, err := r.isBehindArchive(ctx); err != nil || late {
			return err
		}
		return r.writeSnapshot(ctx)
	})
	if fault.CodeOf(err) == fault.Conflict {
		return nil // another router writes; this one sees the result later
	}
	return err
}

// isBehindArchive reports whether another replica has written a snapshot which covers more than is
// known here yet: this router's would replace it.
func (r *Router) isBehindArchive(ctx context.Context) (bool, error) {
	r.snapshots.mu.Lock()
	newest := r.snapshots.mu.newest
	r.snapshots.mu.Unlock()
	if at := r.cache.position(); at.life != newest.life || at.seq >= newest.seq {
		return false, nil
	}
	span, err := r.planes.Bus.DescribeTopic(ctx, r.eventTopic())
	return err == nil && newest.isContinuedBy(span), err // otherwise the stream lost its end
}

// refreshNewest looks for snapshots that another replica has written.
func (r *Router) refreshNewest(ctx context.Context) error {
	all, err := r.listSnapshots(ctx)
	if err != nil {
		return err
	}
	life := r.cache.position().life
	r.snapshots.mu.Lock()
	known := r.snapshots.mu.newest
	r.snapshots.mu.Unlock()
	for _, k := range all {
		if k.life != life {
			continue
		}
		if k.streamPosition != known {
			// Its header has the exact time.
			r.snapshots.setNewest(k.streamPosition, time.Now().UnixMilli())
		}
		break
	}
	return nil
}

// writeSnapshot writes a snapshot and then removes what it makes superfluous: first older snapshots,
// then the messages that all remaining snapshots cover. The caller holds the archive's lock. A writer
// that crashes on the way leaves too much, not too little.
func (r *Router) writeSnapshot(ctx context.Context) error {
	begun := time.Now()
	r.snapshots.mu.Lock()
	size := r.snapshots.mu.size
	r.snapshots.mu.Unlock()
	at, data := r.cache.takeSnapshot(begun.UnixMilli(), size+size/8)
	if data == nil {
		return nil
	}
	encoded := time.Since(begun)
	span, err := r.planes.Bus.DescribeTopic(ctx, r.eventTopic())
	if err != nil {
		return err
	}
	if !at.isContinuedBy(span) {
		return nil // the stream was replaced, and no message of the new one has arrived yet
	}
	if err := r.planes.Archive.Put(ctx, r.snapshotName(at), data); err != nil {
		return err
	}
	r.metrics.snapshots.observeWrite(len(data), encoded, time.Since(begun))
	r.snapshots.setNewest(at, begun.UnixMilli())
	r.snapshots.mu.Lock()
	r.snapshots.mu.size = len(data)
	r.snapshots.mu.Unlock()
	return r.pruneArchive(ctx, at)
}

// pruneArchive removes superfluous snapshots, including snapshots of other lives of the stream
// and of an end that it lost, and then purges the stream.
func (r *Router) pruneArchive(ctx context.Context, newest streamPosition) error {
	all, err := r.listSnapshots(ctx)
	if err != nil {
		return err
	}
	var stay []archivedSnapshot
	for _, k := range all {
		if k.life == newest.life && k.seq <= newest.seq && len(stay) < snapshotsKept {
			stay = append(stay, k)
			continue
		}
		if err := r.planes.Archive.Delete(ctx, k.name); err != nil {
			return err
		}
	}
	if len(stay) < snapshotsKept {
		return nil
	}
	return r.planes.Bus.Purge(ctx, r.eventTopic(), stay[snapshotsKept-1].seq+1)
}
