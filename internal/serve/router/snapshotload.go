package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"penstock/core/kvfeed"
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
func (r *Router) followEvents(ctx context.Context) error {
	if r.mustRestore {
		if err := r.restoreState(ctx); err != nil {
			return err
		}
		r.mustRestore = false
	}
	fctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f := &eventSubscription{router: r, last: r.cache.position()}
	err := r.planes.Bus.Subscribe(fctx, r.eventTopic(), f.nextSeq(), func(m bus.Message) error {
		return f.handleMessage(fctx, m)
	}, func() {
		if err := f.confirmStream(fctx); err != nil {
			stop(err)
			return
		}
		r.cache.releaseRequests()
		r.caughtUp.Store(true)
		r.wakeMaintainer()
	})
	if cause := context.Cause(fctx); err == nil && cause != nil && ctx.Err() == nil {
		err = cause
	}
	if errors.Is(err, errGone) {
		r.mustRestore = true
		r.caughtUp.Store(false)
	}
	return err
}

func (r *Router) eventTopic() bus.Topic { return bus.KVEventsTopic(r.cfg.Namespace, r.cfg.Component) }

// eventSubscription is one subscription to the cache events.
type eventSubscription struct {
	router     *Router
	last       streamPosition // of the last message before the next one
	hasMessage bool           // a message has arrived
	rec        kvfeed.Record
}

// nextSeq is the sequence number to start with; 0 is the oldest one there is.
func (f *eventSubscription) nextSeq() uint64 {
	if f.last.life == 0 {
		return 0
	}
	return f.last.seq + 1
}

// handleMessage judges one message, if it continues the known stream.
func (f *eventSubscription) handleMessage(ctx context.Context, m bus.Message) error {
	at := streamPosition{m.Incarnation, m.Seq}
	if err := f.checkContinuity(ctx, at); err != nil {
		return err
	}
	f.last, f.hasMessage = at, true
	f.router.applyMessage(ctx, &f.rec, m)
	return nil
}

// checkContinuity checks that a message at a position continues the known stream. Without an archive
// every message is accepted: each worker numbers its events and can resend missing ones, and there is
// no better starting point. But it is unknown which workers miss some, so all of them are asked.
//
// A stream that is replaced during the subscription is accepted as well: caches outlive the store. But
// state from before this subscription, as from a snapshot, is then out of date.
func (f *eventSubscription) checkContinuity(ctx context.Context, at streamPosition) error {
	switch r := f.router; {
	case f.last.life == 0, at.life == f.last.life && at.seq <= f.last.seq+1:
		return nil
	case at.life != f.last.life && (f.hasMessage || r.planes.Archive == nil):
		r.log.Warn("the stream of cache events was replaced, going on with the new one")
		r.suspectAllFeeds()
		return nil
	case r.planes.Archive == nil:
		r.throttle.Log(ctx, slog.LevelWarn, "cache events were dropped before they were read, asking the workers what is missing", "after", f.last.seq, "before", at.seq)
		r.suspectAllFeeds()
		return nil
	case at.life != f.last.life:
		return fmt.Errorf("%w: the stream differs from that of the snapshot", errGone)
	}
	return f.checkStream(ctx)
}

// confirmStream checks, when the backlog is empty and no message has arrived, that the stream is still
// the expected one.
func (f *eventSubscription) confirmStream(ctx context.Context) error {
	if f.last.life == 0 || f.hasMessage || f.router.planes.Archive == nil {
		return nil
	}
	return f.checkStream(ctx)
}

// checkStream checks that the messages after the last one are still available.
func (f *eventSubscription) checkStream(ctx context.Context) error {
	span, err := f.router.planes.Bus.DescribeTopic(ctx, f.router.eventTopic())
	if err != nil {
		return err
	}
	if !f.last.isContinuedBy(span) {
		return fmt.Errorf("%w: those after %d of the stream; it has %d to %d", errGone, f.last.seq, span.First, span.Last)
	}
	return nil
}

// isContinuedBy reports whether a stream has all messages after p.
func (p streamPosition) isContinuedBy(s bus.TopicState) bool {
	return p.life == s.Incarnation && p.seq <= s.Last && p.seq+1 >= s.First
}

// archivedSnapshot is a snapshot in the archive.
type archivedSnapshot struct {
	name string
	streamPosition
	size uint64
}

func (r *Router) snapshotPrefix() string {
	return r.cfg.Namespace + "." + r.cfg.Component + ".snapshot."
}

func (r *Router) snapshotName(at streamPosition) string {
	return fmt.Sprintf("%s%016x.%020d", r.snapshotPrefix(), at.life, at.seq)
}

// listSnapshots returns the snapshots in the archive, the newest of each life first. It ignores objects
// with other names.
func (r *Router) listSnapshots(ctx context.Context) ([]archivedSnapshot, error) {
	list, err := r.planes.Archive.List(ctx, r.snapshotPrefix())
	if err != nil {
		return nil, err
	}
	var all []archivedSnapshot
	for _, o := range list {
		k := archivedSnapshot{name: o.Name, size: o.Size}
		n, err := fmt.Sscanf(strings.TrimPrefix(o.Name, r.snapshotPrefix()), "%016x.%020d", &k.life, &k.seq)
		if n == 2 && err == nil && r.snapshotName(k.streamPosition) == o.Name {
			all = append(all, k)
		}
	}
	slices.Reverse(all) // names sort by life and sequence
	return all, nil
}

// restoreState replaces the cache content by the newest snapshot which can be read and which the stream
// continues, or empties it if there is none.
func (r *Router) restoreState(ctx context.Context) error {
	if r.planes.Archive == nil {
		return nil
	}
	span, err := r.planes.Bus.DescribeTopic(ctx, r.eventTopic())
	if err != nil {
		return err
	}
	all, err := r.listSnapshots(ctx)
	if err != nil {
		return err
	}
	for _, k := range all {
		if !k.isContinuedBy(span) {
			continue
		}
		err := r.loadSnapshot(ctx, k)
		if err == nil {
			return nil
		}
		// Is the cause the snapshot or the plane?
		if _, away := r.planes.Bus.DescribeTopic(ctx, r.eventTopic()); away != nil {
			return away
		}
		r.metrics.snapshots.unreadable.Inc()
		r.log.Warn("a snapshot cannot be read, trying an older one", "snapshot", k.name, "error", err)
	}
	if len(all) > 0 {
		r.log.Warn("no snapshot can be used: workers are asked for what they hold", "snapshots", len(all), "first", span.First, "last", span.Last)
	}
	return r.cache.resetContent()
}

func (r *Router) loadSnapshot(ctx context.Context, k archivedSnapshot) error {
	begun := time.Now()
	data, err := r.planes.Archive.Get(ctx, k.name)
	if err != nil {
		return err
	}
	// If a snapshot covered another position than its name says, the messages after it would be read
	// from the wrong position.
	if h, err := snapshot.PeekHeader(data); err == nil && k.streamPosition != (streamPosition{h.StreamID, h.Seq}) {
		return fmt.Errorf("it says that it is of message %d of life %x, its name says otherwise", h.Seq, h.StreamID)
	}
	h, err := r.cache.restoreSnapshot(data)
	if err != nil {
		return err
	}
	blocks, took := r.cache.indexStats().Blocks, time.Since(begun)
	r.metrics.snapshots.observeRestore(blocks, len(data), took)
	r.snapshots.setNewest(k.streamPosition, h.Taken)
	r.log.LogAttrs(ctx, slog.LevelInfo, "snapshot restored", slog.String("snapshot", k.name), slog.Int("blocks", blocks),
		slog.Int("bytes", len(data)), slog.Duration("took", took))
	return nil
}
