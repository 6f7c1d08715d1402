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
type change struct {
	what     changeKind
	id       kv.WorkerID
	instance Instance // for recordPut
	revision uint64   // for recordPut and leasePut
	pending  bool     // more changes are about to follow
	err      error    // of foreign keys and unreadable records
}

type changeKind uint8

const (
	readingBegun changeKind = iota
	readingDone             // all existing keys have been sent
	readingLost             // it will start again
	readingEnded            // it will not start again
	recordPut
	recordGone
	recordUnreadable // the record exists but cannot be decoded
	leasePut
	leaseGone
	strayKey // no user of this package can have written the key
)

// natsWatcher is one Watch. A reader goroutine follows the bucket across interruptions. The
// caller's goroutine owns the view and its timer, and calls the sink.
type watcher struct {
	reg     *NATS
	kind    Kind
	changes chan change // unbuffered: the reader waits for the sink
	view    *view
	sink    func([]Instance)
	shown   []Instance // the last set passed to sink
	any     bool       // sink was called
	reports throttle
}

// Watch implements Registry. The first set arrives once the store has been reached. Watch fails
// only if the connection is closed.
func (r *NATS) Watch(ctx context.Context, kind Kind, sink func([]Instance)) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	w := &watcher{reg: r, kind: kind, changes: make(chan change), view: newView(r.cfg.TTL), sink: sink}
	rctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.follow(rctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	return w.run(ctx)
}

// maxBatch bounds how many changes in a row are applied before the set is shown.
const maxHeld = 1024

// runWatch applies changes and the passing of time to the view.
func (w *watcher) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	held := 0 // applied changes that were not shown yet
	for {
		pending := false
		select {
		case <-ctx.Done():
			return nil
		case c := <-w.changes:
			if c.what == readingEnded {
				return natsd.Unavailable("watch "+string(w.kind), c.err)
			}
			w.apply(time.Now(), c)
			pending = c.pending && held < maxHeld
		case <-timer.C:
			w.view.tick(time.Now())
			w.view.touched = true // a deadline has passed, perhaps only of garbage or a lease
		}
		if pending {
			held++
			continue
		}
		held = 0
		if !w.view.touched || ctx.Err() != nil {
			continue
		}
		w.collect(ctx)
		w.show()
		w.view.touched = false
		if next := w.view.next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
	}
}

func (w *watcher) apply(now time.Time, c change) {
	switch c.what {
	case readingBegun:
		w.view.begin()
	case readingDone:
		w.view.synced(now)
	case readingLost:
		w.view.disconnect()
	case recordPut:
		w.view.put(now, c.instance, c.revision)
	case recordGone:
		w.view.removed(c.id)
	case leasePut:
		w.view.refresh(now, c.id, c.revision)
	case leaseGone:
		w.view.expired(now, c.id)
	case recordUnreadable:
		w.view.keep(now, c.id)
		w.report(now, c)
	case strayKey:
		w.report(now, c)
	}
}

// reportUnreadable counts unreadable records and foreign keys, and logs some of them.
func (w *watcher) report(now time.Time, c change) {
	w.reg.malformed.Add(1)
	if n, ok := w.reports.admit(now); ok {
		w.reg.cfg.Log.Warn("unreadable discovery record skipped", "kind", w.kind, "id", c.id, "err", c.err, "since_last_report", n)
	}
}

// showSet calls sink if the set has changed. While the store is still sending everything, the set
// is incomplete and is not shown.
func (w *watcher) show() {
	if w.view.contact == never || w.view.contact == reading {
		return
	}
	set := w.view.set()
	if w.any && equalSets(set, w.shown) || !w.any && !w.view.complete {
		return
	}
	w.any, w.shown = true, cloneSet(set)
	w.sink(set)
}

// removeDead removes the keys of dead processes: liveness keys that the store does not expire, and
// records. It is harmless if another watcher does the same, or if the process returns meanwhile,
// because each removal is conditional on the revision.
func (w *watcher) collect(ctx context.Context) {
	now := time.Now()
	for _, d := range w.view.overdue(now) {
		if w.expire(ctx, d) != nil {
			return // they are overdue again later
		}
	}
	for _, d := range w.view.garbage(now) {
		if _, err := w.purge(ctx, recordKey(name{w.kind, d.id}), d.revision); err != nil {
			return // they are garbage again after two TTLs
		}
	}
}

// removeOverdueLease removes a liveness key in place of the store, unless it was refreshed. Its
// removal takes effect on the view when the store reports it, as for an expired key.
func (w *watcher) expire(ctx context.Context, d deadLease) error {
	removed, err := w.purge(ctx, leaseKey(name{w.kind, d.id}), d.revision)
	if removed {
		w.reg.cfg.Log.Warn("removed a registration that its process no longer refreshes: the store had lost its expiry, as after a crash", "kind", w.kind, "id", d.id)
	}
	return err
}

// purgeKey removes a key of the bucket if rev is still its last revision, and reports whether it
// was.
func (w *watcher) purge(ctx context.Context, key string, rev uint64) (removed bool, err error) {
	err = natsd.While(ctx, w.reg.nc, "collect", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		b, err := w.reg.bucket(ctx)
		if err == nil {
			removed, err = purge(ctx, b, key, rev)
		}
		return err
	})
	return removed, err
}

// followBucket reads the bucket until ctx ends. After every interruption it reads the whole bucket
// again: deletion markers expire, so a missing key counts as removed.
func (w *watcher) follow(ctx context.Context) {
	log := w.reg.cfg.Log
	interrupted := false
	for {
		err := w.read(ctx, func() {
			if interrupted {
				interrupted = false
				log.Info("discovery watch resumed", "kind", w.kind)
			}
		})
		if ctx.Err() != nil {
			return
		}
		if w.reg.nc.IsClosed() {
			w.tell(ctx, change{what: readingEnded, err: nats.ErrConnectionClosed})
			return
		}
		w.tell(ctx, change{what: readingLost})
		if !interrupted {
			interrupted = true
			log.Warn("discovery watch interrupted", "kind", w.kind, "err", err)
		}
		_ = backoff.Pause(ctx, 100*time.Millisecond+rand.N(100*time.Millisecond)) // ctx is checked above
	}
}

// readBucket sends all keys of the kind, then every change, until an error.
func (w *watcher) read(ctx context.Context, resumed func()) error {
	err := natsd.While(ctx, w.reg.nc, "watch "+string(w.kind), func(ctx context.Context) error {
		_, err := w.reg.bucket(ctx)
		return err
	})
	if err != nil {
		return err
	}
	w.tell(ctx, change{what: readingBegun, pending: true})
	from := natsd.From{Subjects: []string{
		w.reg.subject(recordWord + "." + string(w.kind) + ".*"),
		w.reg.subject(leaseWord + "." + string(w.kind) + ".*"),
	}}
	return natsd.Tail(ctx, w.reg.nc, w.reg.js, w.reg.stream(), from, func(m natsd.Msg) error {
		w.tell(ctx, w.interpret(m))
		return nil
	}, func() {
		w.tell(ctx, change{what: readingDone})
		resumed()
	})
}

// sendChange passes a change to the caller's goroutine.
func (w *watcher) tell(ctx context.Context, c change) {
	select {
	case w.changes <- c:
	case <-ctx.Done():
	}
}

// decodeMessage decodes one message of the bucket.
func (w *watcher) interpret(m natsd.Msg) change {
	word, id, ok := w.reg.splitSubject(w.kind, m.Subject)
	c := change{id: id, revision: m.Seq, pending: m.Pending > 0}
	gone := m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
	switch {
	case !ok:
		c.what, c.err = strayKey, fault.New(fault.Invalid, "the key is not one of ours")
	case word == recordWord && gone:
		c.what = recordGone
	case word == leaseWord && gone:
		c.what = leaseGone
	case word == leaseWord:
		c.what = leasePut // only its existence matters
	default:
		r, err := decodeRecord(w.kind, id, m.Data)
		c.what, c.instance = recordPut, r.Instance
		if err != nil {
			c.what, c.err = recordUnreadable, err
		}
	}
	return c
}

// reportThrottle allows one report per minute and counts the others.
type throttle struct {
	last time.Time
	n    uint64
}

func (t *throttle) admit(now time.Time) (n uint64, ok bool) {
	t.n++
	if !t.last.IsZero() && now.Sub(t.last) < time.Minute {
		return 0, false
	}
	n, t.n, t.last = t.n, 0, now
	return n, true
}
