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

// change is what the reader of the bucket tells the watch.
type change struct {
	what     changeKind
	id       kv.WorkerID
	instance Instance // of recordPut
	revision uint64   // of recordPut and leasePut
	pending  bool     // more is on its way
	err      error    // of what is refused or unreadable
}

type changeKind uint8

const (
	readingBegun changeKind = iota
	readingDone             // everything that was there has been told
	readingLost             // it will begin again
	readingEnded            // it will not
	recordPut
	recordGone
	recordUnreadable // it is there, whatever it says
	leasePut
	leaseGone
	strayKey // nobody who uses this package can have written it
)

// watcher is one Watch: a reader goroutine that follows the bucket through every
// interruption, and the caller's goroutine, which keeps the view, its timer and
// calls the sink.
type watcher struct {
	reg     *NATS
	kind    Kind
	changes chan change // unbuffered: the reader waits for the sink
	view    *view
	sink    func([]Instance)
	shown   []Instance // last given to sink
	any     bool       // sink was called
	reports throttle
}

// Watch implements Registry. The first set comes once the store has been
// reached. It fails only if the connection is closed.
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

// maxHeld bounds how many changes in a row are applied before the set is shown.
const maxHeld = 1024

// run applies changes and the passing of time to the view.
func (w *watcher) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	held := 0 // changes that were not shown because more were on their way
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
			w.view.touched = true // something was due, be it only garbage or a lease
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

// report counts what could not be read and logs some of it.
func (w *watcher) report(now time.Time, c change) {
	w.reg.malformed.Add(1)
	if n, ok := w.reports.admit(now); ok {
		w.reg.cfg.Log.Warn("unreadable discovery record skipped", "kind", w.kind, "id", c.id, "err", c.err, "since_last_report", n)
	}
}

// show calls sink if what is shown has changed. While the store tells everything
// it has, the picture is half: it is not shown.
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

// collect removes what the dead left: liveness keys that the store does not expire,
// and records. That another watcher does the same, or that the dead come back
// meanwhile, does no harm: the revision decides.
func (w *watcher) collect(ctx context.Context) {
	now := time.Now()
	for _, d := range w.view.overdue(now) {
		if w.expire(ctx, d) != nil {
			return // they are due again later
		}
	}
	for _, d := range w.view.garbage(now) {
		if _, err := w.purge(ctx, recordKey(name{w.kind, d.id}), d.revision); err != nil {
			return // after two more TTLs they are due again
		}
	}
}

// expire removes a liveness key in place of the store, unless it has been refreshed.
// What follows from its end follows when the store tells of it, as it does of a key
// that ran out.
func (w *watcher) expire(ctx context.Context, d deadLease) error {
	removed, err := w.purge(ctx, leaseKey(name{w.kind, d.id}), d.revision)
	if removed {
		w.reg.cfg.Log.Warn("removed a registration that its process no longer refreshes: the store had lost its expiry, as after a crash", "kind", w.kind, "id", d.id)
	}
	return err
}

// purge removes a key of the bucket if rev is still its last revision, and reports
// whether it was.
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

// follow reads the bucket until ctx ends. After every interruption it reads all
// of it again: marks of removed keys do not last, so what is missing is what was
// removed.
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
		_ = backoff.Pause(ctx, 100*time.Millisecond+rand.N(100*time.Millisecond)) // the end of ctx shows in the next attempt
	}
}

// read tells all keys of the kind, then every change, until something fails.
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

// tell passes a change to the caller's goroutine.
func (w *watcher) tell(ctx context.Context, c change) {
	select {
	case w.changes <- c:
	case <-ctx.Done():
	}
}

// interpret reads one message of the bucket.
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
		c.what = leasePut // that it is there is all that counts
	default:
		r, err := decodeRecord(w.kind, id, m.Data)
		c.what, c.instance = recordPut, r.Instance
		if err != nil {
			c.what, c.err = recordUnreadable, err
		}
	}
	return c
}

// throttle lets one report through per minute and counts those between.
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
