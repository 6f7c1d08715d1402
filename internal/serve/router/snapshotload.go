package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"penstock/core/feed"
	"penstock/core/snapshot"
	"penstock/internal/plane/bus"
)

// errGone means that missing messages are no longer in the event plane, or that its stream is not the
// known one.
var errGone = errors.New("events were lost")

// followEvents applies cache events until ctx ends or the plane fails. The first time, and after
// errGone, it starts with a snapshot, or without one with the oldest message kept. Otherwise it starts
// after the last message that was judged, not the last one delivered: messages are not acknowledged,
// because only the state in memory counts.
func (r *Router) follow(ctx context.Context) error {
	if r.stale {
		if err := r.restore(ctx); err != nil {
			return err
		}
		r.stale = false
	}
	fctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f := &following{router: r, at: r.cache.where()}
	err := r.planes.Bus.Subscribe(fctx, r.eventTopic(), f.next(), func(m bus.Message) error {
		return f.take(fctx, m)
	}, func() {
		if err := f.confirm(fctx); err != nil {
			stop(err)
			return
		}
		r.cache.release()
		r.caughtUp.Store(true)
		r.wake()
	})
	if cause := context.Cause(fctx); err == nil && cause != nil && ctx.Err() == nil {
		err = cause
	}
	if errors.Is(err, errGone) {
		r.stale = true
		r.caughtUp.Store(false)
	}
	return err
}

func (r *Router) eventTopic() bus.Topic { return bus.KVEvents(r.cfg.Namespace, r.cfg.Component) }

// eventSubscription is one subscription to the cache events.
type following struct {
	router *Router
	at     place // of the last message before the next one
	heard  bool  // a message has arrived
	rec    feed.Record
}

// nextSeq is the sequence number to start with; 0 is the oldest one there is.
func (f *following) next() uint64 {
	if f.at.life == 0 {
		return 0
	}
	return f.at.seq + 1
}

// handleMessage judges one message, if it continues the known stream.
func (f *following) take(ctx context.Context, m bus.Message) error {
	at := place{m.Life, m.Seq}
	if err := f.continues(ctx, at); err != nil {
		return err
	}
	f.at, f.heard = at, true
	f.router.take(ctx, &f.rec, m)
	return nil
}

// checkContinuity checks that a message at a position continues the known stream. Without an archive
// every message is accepted: each worker numbers its events and can resend missing ones, and there is
// no better starting point. But it is unknown which workers miss some, so all of them are asked.
//
// A stream that is replaced during the subscription is accepted as well: caches outlive the store. But
// state from before this subscription, as from a snapshot, is then out of date.
func (f *following) continues(ctx context.Context, at place) error {
	switch r := f.router; {
	case f.at.life == 0, at.life == f.at.life && at.seq <= f.at.seq+1:
		return nil
	case at.life != f.at.life && (f.heard || r.planes.Archive == nil):
		r.log.Warn("the stream of cache events was replaced, going on with the new one")
		r.askAll()
		return nil
	case r.planes.Archive == nil:
		r.throttle.Log(ctx, slog.LevelWarn, "cache events were dropped before they were read, asking the workers what is missing", "after", f.at.seq, "before", at.seq)
		r.askAll()
		return nil
	case at.life != f.at.life:
		return fmt.Errorf("%w: the stream is another one than that of the snapshot", errGone)
	}
	return f.look(ctx)
}

// confirmStream checks, when the backlog is empty and no message has arrived, that the stream is still
// the expected one.
func (f *following) confirm(ctx context.Context) error {
	if f.at.life == 0 || f.heard || f.router.planes.Archive == nil {
		return nil
	}
	return f.look(ctx)
}

// checkStream checks that the messages after the last one are still available.
func (f *following) look(ctx context.Context) error {
	span, err := f.router.planes.Bus.Span(ctx, f.router.eventTopic())
	if err != nil {
		return err
	}
	if !f.at.goesOn(span) {
		return fmt.Errorf("%w: those after %d of the stream; it has %d to %d", errGone, f.at.seq, span.First, span.Last)
	}
	return nil
}

// isContinuedBy reports whether a stream has all messages after p.
func (p place) goesOn(s bus.Span) bool {
	return p.life == s.Life && p.seq <= s.Last && p.seq+1 >= s.First
}

// archivedSnapshot is a snapshot in the archive.
type keptSnapshot struct {
	name string
	place
	size uint64
}

func (r *Router) snapshotPrefix() string {
	return r.cfg.Namespace + "." + r.cfg.Component + ".snapshot."
}

func (r *Router) snapshotName(at place) string {
	return fmt.Sprintf("%s%016x.%020d", r.snapshotPrefix(), at.life, at.seq)
}

// listSnapshots returns the snapshots in the archive, the newest of each life first. It ignores objects
// with other names.
func (r *Router) kept(ctx context.Context) ([]keptSnapshot, error) {
	list, err := r.planes.Archive.List(ctx, r.snapshotPrefix())
	if err != nil {
		return nil, err
	}
	var all []keptSnapshot
	for _, o := range list {
		k := keptSnapshot{name: o.Name, size: o.Size}
		n, err := fmt.Sscanf(strings.TrimPrefix(o.Name, r.snapshotPrefix()), "%016x.%020d", &k.life, &k.seq)
		if n == 2 && err == nil && r.snapshotName(k.place) == o.Name {
			all = append(all, k)
		}
	}
	slices.Reverse(all) // names sort by life and sequence
	return all, nil
}

// restoreState replaces the cache content by the newest snapshot which can be read and which the stream
// continues, or empties it if there is none.
func (r *Router) restore(ctx context.Context) error {
	if r.planes.Archive == nil {
		return nil
	}
	span, err := r.planes.Bus.Span(ctx, r.eventTopic())
	if err != nil {
		return err
	}
	all, err := r.kept(ctx)
	if err != nil {
		return err
	}
	for _, k := range all {
		if !k.goesOn(span) {
			continue
		}
		err := r.load(ctx, k)
		if err == nil {
			return nil
		}
		// Is the cause the snapshot or the plane?
		if _, away := r.planes.Bus.Span(ctx, r.eventTopic()); away != nil {
			return away
		}
		r.metrics.snapshots.unreadable.Inc()
		r.log.Warn("a snapshot cannot be read, trying an older one", "snapshot", k.name, "error", err)
	}
	if len(all) > 0 {
		r.log.Warn("no snapshot can be used: workers are asked for what they hold", "snapshots", len(all), "first", span.First, "last", span.Last)
	}
	return r.cache.reset()
}

func (r *Router) load(ctx context.Context, k keptSnapshot) error {
	begun := time.Now()
	data, err := r.planes.Archive.Get(ctx, k.name)
	if err != nil {
		return err
	}
	// If a snapshot covered another position than its name says, the messages after it would be read
	// from the wrong position.
	if h, err := snapshot.Peek(data); err == nil && k.place != (place{h.Life, h.Seq}) {
		return fmt.Errorf("it says that it is of message %d of life %x, its name says otherwise", h.Seq, h.Life)
	}
	h, err := r.cache.restore(data)
	if err != nil {
		return err
	}
	blocks, took := r.cache.stats().Blocks, time.Since(begun)
	r.metrics.snapshots.restored(blocks, len(data), took)
	r.snapshots.saw(k.place, h.Taken)
	r.log.LogAttrs(ctx, slog.LevelInfo, "snapshot restored", slog.String("snapshot", k.name), slog.Int("blocks", blocks),
		slog.Int("bytes", len(data)), slog.Duration("took", took))
	return nil
}
