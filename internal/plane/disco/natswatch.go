package disco

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/plane/natsd"
)

// storeChange is a change which the reader of the bucket passes to the watch.
type storeChange struct {
	kind     changeKind
	id       kv.WorkerID
	instance Instance // for recordPut
	revision uint64   // for recordPut and leasePut
	pending  bool     // more changes are about to follow
	err      error    // of foreign keys and unreadable records
}

type changeKind uint8

const (
	readingStarted changeKind = iota
	readingDone               // all existing keys have been sent
	readingLost               // it will start again
	readingStopped            // it will not start again
	recordPut
	recordGone
	recordUnreadable // the record exists but cannot be decoded
	leasePut
	leaseGone
	strayKey // no user of this package can have written the key
)

// natsWatcher is one Watch. A reader goroutine follows the bucket across interruptions. The
// caller's goroutine owns the view and its timer, and calls the sink.
type natsWatcher struct {
	reg       *NATSRegistry
	kind      Kind
	changes   chan storeChange // unbuffered: the reader waits for the sink
	view      *instanceView
	sink      func([]Instance)
	lastShown []Instance // the last set passed to sink
	shownOnce bool       // sink was called
	reports   reportThrottle
}

// Watch implements Registry. The first set arrives once the store has been reached. Watch fails
// only if the connection is closed.
func (r *NATSRegistry) Watch(ctx context.Context, kind Kind, sink func([]Instance)) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	w := &natsWatcher{reg: r, kind: kind, changes: make(chan storeChange), view: newInstanceView(r.cfg.TTL), sink: sink}
	rctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.followBucket(rctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	return w.runWatch(ctx)
}

// maxBatch bounds how many changes in a row are applied before the set is shown.
const maxBatch = 1024

// runWatch applies changes and the passing of time to the view.
func (w *natsWatcher) runWatch(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	held := 0 // applied changes that were not shown yet
	for {
		pending := false
		select {
		case <-ctx.Done():
			return nil
		case c := <-w.changes:
			if c.kind == readingStopped {
				return natsd.WrapUnavailable("watch "+string(w.kind), c.err)
			}
			w.applyChange(time.Now(), c)
			pending = c.pending && held < maxBatch
		case <-timer.C:
			w.view.dropUnconfirmed(time.Now())
			w.view.changed = true // a deadline has passed, perhaps only of garbage or a lease
		}
		if pending {
			held++
			continue
		}
		held = 0
		if !w.view.changed || ctx.Err() != nil {
			continue
		}
		w.removeDead(ctx)
		w.showSet()
		w.view.changed = false
		if next := w.view.nextDeadline(); !next.IsZero() {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
	}
}

func (w *natsWatcher) applyChange(now time.Time, c storeChange) {
	switch c.kind {
	case readingStarted:
		w.view.startReading()
	case readingDone:
		w.view.finishReading(now)
	case readingLost:
		w.view.markDisconnected()
	case recordPut:
		w.view.putRecord(now, c.instance, c.revision)
	case recordGone:
		w.view.removeRecord(c.id)
	case leasePut:
		w.view.refreshLease(now, c.id, c.revision)
	case leaseGone:
		w.view.expireLease(now, c.id)
	case recordUnreadable:
		w.view.keepRecord(now, c.id)
		w.reportUnreadable(now, c)
	case strayKey:
		w.reportUnreadable(now, c)
	}
}

// reportUnreadable counts unreadable records and foreign keys, and logs some of them.
func (w *natsWatcher) reportUnreadable(now time.Time, c storeChange) {
	w.reg.malformed.Add(1)
	if n, ok := w.reports.allow(now); ok {
		w.reg.cfg.Log.Warn("unreadable discovery record skipped", "kind", w.kind, "id", c.id, "err", c.err, "since_last_report", n)
	}
}

// showSet calls sink if the set has changed. While the store is still sending everything, the set
// is incomplete and is not shown.
func (w *natsWatcher) showSet() {
	if w.view.contact == contactNever || w.view.contact == contactReading {
		return
	}
	set := w.view.shownInstances()
	if w.shownOnce && equalSets(set, w.lastShown) || !w.shownOnce && !w.view.complete {
		return
	}
	w.shownOnce, w.lastShown = true, cloneSet(set)
	w.sink(set)
}

// removeDead removes the keys of dead processes: liveness keys that the store does not expire, and
// records. It is harmless if another watcher does the same, or if the process returns meanwhile,
// because each removal is conditional on the revision.
func (w *natsWatcher) removeDead(ctx context.Context) {
	now := time.Now()
	for _, d := range w.view.takeOverdue(now) {
		if w.removeOverdueLease(ctx, d) != nil {
			return // they are overdue again later
		}
	}
	for _, d := range w.view.takeGarbage(now) {
		if _, err := w.purgeKey(ctx, recordKey(instanceKey{w.kind, d.id}), d.revision); err != nil {
			return // they are garbage again after two TTLs
		}
	}
}

// removeOverdueLease removes a liveness key in place of the store, unless it was refreshed. Its
// removal takes effect on the view when the store reports it, as for an expired key.
func (w *natsWatcher) removeOverdueLease(ctx context.Context, d deadLease) error {
	removed, err := w.purgeKey(ctx, leaseKey(instanceKey{w.kind, d.id}), d.revision)
	if removed {
		w.reg.cfg.Log.Warn("removed a registration that its process no longer refreshes: the store had lost its expiry, as after a crash", "kind", w.kind, "id", d.id)
	}
	return err
}

// purgeKey removes a key of the bucket if rev is still its last revision, and reports whether it
// was.
func (w *natsWatcher) purgeKey(ctx context.Context, key string, rev uint64) (removed bool, err error) {
	err = natsd.RunWhileConnected(ctx, w.reg.nc, "collect", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		b, err := w.reg.openBucket(ctx)
		if err == nil {
			removed, err = purgeRevision(ctx, b, key, rev)
		}
		return err
	})
	return removed, err
}

// followBucket reads the bucket until ctx ends. After every interruption it reads the whole bucket
// again: deletion markers expire, so a missing key counts as removed.
func (w *natsWatcher) followBucket(ctx context.Context) {
	log := w.reg.cfg.Log
	interrupted := false
	for {
		err := w.readBucket(ctx, func() {
			if interrupted {
				interrupted = false
				log.Info("discovery watch resumed", "kind", w.kind)
			}
		})
		if ctx.Err() != nil {
			return
		}
		if w.reg.nc.IsClosed() {
			w.sendChange(ctx, storeChange{kind: readingStopped, err: nats.ErrConnectionClosed})
			return
		}
		w.sendChange(ctx, storeChange{kind: readingLost})
		if !interrupted {
			interrupted = true
			log.Warn("discovery watch interrupted", "kind", w.kind, "err", err)
		}
		_ = backoff.SleepContext(ctx, 100*time.Millisecond+rand.N(100*time.Millisecond)) // ctx is checked above
	}
}

// readBucket sends all keys of the kind, then every change, until an error.
func (w *natsWatcher) readBucket(ctx context.Context, resumed func()) error {
	err := natsd.RunWhileConnected(ctx, w.reg.nc, "watch "+string(w.kind), func(ctx context.Context) error {
		_, err := w.reg.openBucket(ctx)
		return err
	})
	if err != nil {
		return err
	}
	w.sendChange(ctx, storeChange{kind: readingStarted, pending: true})
	from := natsd.TailStart{Subjects: []string{
		w.reg.keySubject(recordWord + "." + string(w.kind) + ".*"),
		w.reg.keySubject(leaseWord + "." + string(w.kind) + ".*"),
	}}
	return natsd.Tail(ctx, w.reg.nc, w.reg.js, w.reg.streamName(), from, func(m natsd.Msg) error {
		w.sendChange(ctx, w.decodeMessage(m))
		return nil
	}, func() {
		w.sendChange(ctx, storeChange{kind: readingDone})
		resumed()
	})
}

// sendChange passes a change to the caller's goroutine.
func (w *natsWatcher) sendChange(ctx context.Context, c storeChange) {
	select {
	case w.changes <- c:
	case <-ctx.Done():
	}
}

// decodeMessage decodes one message of the bucket.
func (w *natsWatcher) decodeMessage(m natsd.Msg) storeChange {
	word, id, ok := w.reg.parseSubject(w.kind, m.Subject)
	c := storeChange{id: id, revision: m.Seq, pending: m.Pending > 0}
	gone := m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
	switch {
	case !ok:
		c.kind, c.err = strayKey, fault.New(fault.Invalid, "the key is not one of ours")
	case word == recordWord && gone:
		c.kind = recordGone
	case word == leaseWord && gone:
		c.kind = leaseGone
	case word == leaseWord:
		c.kind = leasePut // only its existence matters
	default:
		r, err := decodeRecord(w.kind, id, m.Data)
		c.kind, c.instance = recordPut, r.Instance
		if err != nil {
			c.kind, c.err = recordUnreadable, err
		}
	}
	return c
}

// reportThrottle allows one report per minute and counts the others.
type reportThrottle struct {
	last time.Time
	n    uint64
}

func (t *reportThrottle) allow(now time.Time) (n uint64, ok bool) {
	t.n++
	if !t.last.IsZero() && now.Sub(t.last) < time.Minute {
		return 0, false
	}
	n, t.n, t.last = t.n, 0, now
	return n, true
}
