package disco

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// natsLease is one registration. Its own goroutine refreshes the liveness key and does all other
// work on the registration, one task at a time, so the fields need no lock.
type natsLease struct {
	reg     *NATSRegistry
	updates chan updateRequest
	release chan struct{} // closed by the first Release
	once    chan struct{} // holds a token until the first Release
	done    chan struct{} // closed when the goroutine has ended
	err     error         // of the removal; valid after done
	lost    chan struct{} // closed when superseded is set

	rec        instanceRecord // the registered instance, or the one to register
	data       []byte         // its JSON
	claim      []byte         // JSON of the liveness key
	leaseRev   uint64         // of our liveness key
	recordRev  uint64         // of our record
	stored     bool           // data is known to be in the store
	superseded bool           // a newer incarnation has replaced ours
}

// updateRequest asks the goroutine for an Update.
type updateRequest struct {
	ctx   context.Context // of the call, which waits for the reply
	in    Instance
	reply chan error
}

// Register implements Registry.
func (r *NATSRegistry) Register(ctx context.Context, in Instance) (Lease, error) {
	in.Unconfirmed = false
	l := &natsLease{
		reg:     r,
		updates: make(chan updateRequest),
		release: make(chan struct{}),
		once:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		lost:    make(chan struct{}),
	}
	l.once <- struct{}{}
	l.rec.Holder = newHolder()
	if err := l.setRecord(in); err != nil {
		return nil, err
	}
	claim, err := json.Marshal(leaseClaim{Epoch: in.Epoch, Holder: l.rec.Holder})
	if err != nil {
		return nil, fmt.Errorf("register %s %d: %w", in.Kind, in.ID, err)
	}
	l.claim = claim
	if err := natsd.RunWhileConnected(ctx, r.nc, l.describeOp("register"), l.claimInstance); err != nil {
		return nil, err
	}
	if err := r.startLease(l); err != nil {
		return nil, err
	}
	return l, nil
}

// newHolder returns 128 random bits in hex.
func newHolder() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// startLease starts the goroutine of l unless the registry was closed.
func (r *NATSRegistry) startLease(l *natsLease) error {
	ctx, stop := context.WithCancel(context.Background())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		stop()
		return fault.New(fault.Unavailable, "%s: the registry is closed", l.describeOp("register"))
	}
	r.mu.stops[l] = stop
	r.leases.Go(func() {
		defer close(l.done)
		defer r.forgetLease(l)
		l.runLease(ctx)
	})
	return nil
}

func (r *NATSRegistry) forgetLease(l *natsLease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.stops[l]() // releases the context
	delete(r.mu.stops, l)
}

func (l *natsLease) key() instanceKey { return instanceKey{l.rec.Kind, l.rec.ID} }

func (l *natsLease) describeOp(verb string) string {
	return fmt.Sprintf("%s %s %d", verb, l.rec.Kind, l.rec.ID)
}

// setRecord makes in the instance to register.
func (l *natsLease) setRecord(in Instance) error {
	rec := instanceRecord{Instance: in, Holder: l.rec.Holder}
	data, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	rec.Meta = nil // kept in data only
	l.rec, l.data, l.stored = rec, data, false
	return nil
}

// runLease refreshes the registration and serves requests until the lease is released, the
// connection is closed, or ctx ends.
func (l *natsLease) runLease(ctx context.Context) {
	timer := time.NewTimer(l.reg.refreshInterval())
	defer timer.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			l.err = fault.New(fault.Unavailable, "%s: the registry was closed before; the lease runs out by itself", l.describeOp("release"))
			return
		case <-l.release:
			l.err = l.removeKeys(ctx)
			return
		case u := <-l.updates:
			u.reply <- l.applyUpdate(u.ctx, u.in)
			if !l.stored {
				timer.Reset(l.reg.retryInterval())
			}
			continue
		case <-timer.C:
		}
		if l.reg.nc.IsClosed() {
			l.err = natsd.WrapUnavailable(l.describeOp("release"), nats.ErrConnectionClosed)
			l.reg.cfg.Log.Error("registration ends: the connection was closed", "kind", l.rec.Kind, "id", l.rec.ID)
			return
		}
		if l.superseded {
			continue // still answer requests, but refresh no more
		}
		err := l.refreshLease(ctx)
		switch {
		case ctx.Err() != nil:
		case fault.CodeOf(err) == fault.Conflict && err != nil:
			l.markSuperseded()
			l.reg.cfg.Log.Error("registration lost to another holder", "kind", l.rec.Kind, "id", l.rec.ID, "err", err)
		case err != nil && !failed:
			failed = true
			l.reg.cfg.Log.Warn("registration cannot be refreshed", "kind", l.rec.Kind, "id", l.rec.ID, "err", err)
		case err == nil && failed:
			failed = false
			l.reg.cfg.Log.Info("registration refreshed again", "kind", l.rec.Kind, "id", l.rec.ID)
		}
		if failed {
			timer.Reset(l.reg.retryInterval())
		} else {
			timer.Reset(l.reg.refreshInterval())
		}
	}
}

// refreshInterval returns a third of the TTL, less up to a tenth at random, so that two refreshes
// may fail and many processes do not refresh in lockstep.
func (r *NATSRegistry) refreshInterval() time.Duration {
	d := r.cfg.TTL / 3
	return d - mathrand.N(d/10)
}

// retryInterval returns the pause between attempts while the store is unreachable.
func (r *NATSRegistry) retryInterval() time.Duration {
	d := min(r.cfg.TTL/10, 500*time.Millisecond)
	return d + mathrand.N(d)
}

// refreshLease rewrites the liveness key. A plain update would lose the key's TTL, so it is
// published with one. If another process wrote the key, or the key or the bucket is gone, or an
// earlier update failed, refreshLease claims the registration again.
func (l *natsLease) refreshLease(ctx context.Context) error {
	return natsd.RunWhileConnected(ctx, l.reg.nc, l.describeOp("refresh"), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, max(l.reg.cfg.TTL/2, time.Second))
		defer cancel()
		if !l.stored { // an update failed
			return l.claimInstance(ctx)
		}
		rev, err := l.publishLease(ctx, l.leaseRev)
		if err == nil {
			l.leaseRev = rev
			return nil
		}
		if isLostRace(err) || errors.Is(err, jetstream.ErrNoStreamResponse) {
			return l.claimInstance(ctx)
		}
		return err
	})
}

// publishLease writes the liveness key if rev is its last revision.
func (l *natsLease) publishLease(ctx context.Context, rev uint64) (uint64, error) {
	m := nats.NewMsg(l.reg.keySubject(leaseKey(l.key())))
	m.Data = l.claim
	ack, err := l.reg.js.PublishMsg(ctx, m,
		jetstream.WithMsgTTL(l.reg.cfg.TTL),
		jetstream.WithExpectStream(l.reg.streamName()),
		jetstream.WithExpectLastSequencePerSubject(rev))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// applyUpdate serves an Update.
func (l *natsLease) applyUpdate(ctx context.Context, in Instance) error {
	if l.superseded {
		return errLeaseReleased(in)
	}
	in.Unconfirmed = false
	if err := checkSameIdentity(l.rec.Instance, in); err != nil {
		return err
	}
	if err := l.setRecord(in); err != nil {
		return err
	}
	err := natsd.RunWhileConnected(ctx, l.reg.nc, l.describeOp("update"), l.claimInstance)
	if err != nil && fault.CodeOf(err) == fault.Conflict {
		l.markSuperseded()
		return errLeaseReleased(in)
	}
	return err
}

// removeKeys removes the record, then the liveness key, if they are still ours.
func (l *natsLease) removeKeys(ctx context.Context) error {
	if l.superseded {
		return nil
	}
	return natsd.RunWhileConnected(ctx, l.reg.nc, l.describeOp("release"), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, max(l.reg.cfg.TTL/2, time.Second))
		defer cancel()
		b, err := l.reg.openBucket(ctx)
		if err != nil {
			return err
		}
		if _, err := purgeRevision(ctx, b, recordKey(l.key()), l.recordRev); err != nil {
			return err
		}
		_, err = purgeRevision(ctx, b, leaseKey(l.key()), l.leaseRev)
		return err
	})
}

// purgeRevision removes a key if rev is still its last revision, and reports whether it was.
func purgeRevision(ctx context.Context, b jetstream.KeyValue, key string, rev uint64) (removed bool, err error) {
	err = b.Purge(ctx, key, jetstream.LastRevision(rev), jetstream.PurgeTTL(markerTTL))
	if isLostRace(err) {
		return false, nil // already gone, or another process's
	}
	return err == nil, err
}

// Update implements Lease.
func (l *natsLease) Update(ctx context.Context, in Instance) error {
	u := updateRequest{ctx: ctx, in: in, reply: make(chan error, 1)}
	select {
	case l.updates <- u:
		return <-u.reply
	case <-l.done:
		return errLeaseReleased(in)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Lost implements Lease.
func (l *natsLease) Lost() <-chan struct{} { return l.lost }

// markSuperseded records that a newer incarnation of the instance is registered.
func (l *natsLease) markSuperseded() {
	l.superseded = true
	close(l.lost)
}

// Release implements Lease.
func (l *natsLease) Release(ctx context.Context) error {
	select {
	case <-l.once:
		close(l.release)
	default:
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
