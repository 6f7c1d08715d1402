package disco

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// natsLease is one registration. The goroutine of its lease does all work on it, so the fields need no lock.
type natsLease struct {
	*lease
	reg       *NATSRegistry
	rec       instanceRecord // the registered instance, or the one to register
	data      []byte         // its JSON
	claim     []byte         // JSON of the liveness key
	leaseRev  uint64         // of our liveness key
	recordRev uint64         // of our record
	stored    bool           // data is known to be in the store
}

// Register implements Registry.
func (r *NATSRegistry) Register(ctx context.Context, in Instance) (Lease, error) {
	in.Unconfirmed = false
	l := &natsLease{reg: r}
	l.lease = newLease(l, instanceKey{in.Kind, in.ID}, r.cfg.Log)
	// A third of the TTL, less up to a tenth at random, so that two refreshes may fail and many processes do
	// not refresh in lockstep.
	l.refreshAfter = func() time.Duration { return r.cfg.TTL/3 - rand.N(r.cfg.TTL/30) }
	l.retryAfter = func() time.Duration {
		d := min(r.cfg.TTL/10, 500*time.Millisecond)
		return d + rand.N(d)
	}
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
	if err := r.leases.startLease(l.lease, l.rec.Holder); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *natsLease) key() instanceKey { return instanceKey{l.rec.Kind, l.rec.ID} }

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

// refreshLease implements leaseStore: it rewrites the liveness key. A plain update would lose the key's TTL, so
// it is published with one. If another process wrote the key, or the key or the bucket is gone, or an earlier
// update failed, refreshLease claims the registration again.
func (l *natsLease) refreshLease(ctx context.Context) error {
	if l.reg.nc.IsClosed() {
		return closedStoreError{natsd.WrapUnavailable(l.describeOp("release"), nats.ErrConnectionClosed)}
	}
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

// applyUpdate implements leaseStore.
func (l *natsLease) applyUpdate(ctx context.Context, in Instance) (stored bool, err error) {
	in.Unconfirmed = false
	if err := checkSameIdentity(l.rec.Instance, in); err != nil {
		return l.stored, err
	}
	if err := l.setRecord(in); err != nil {
		return l.stored, err
	}
	err = natsd.RunWhileConnected(ctx, l.reg.nc, l.describeOp("update"), l.claimInstance)
	if err != nil && fault.CodeOf(err) == fault.Conflict {
		l.markSuperseded()
		err = errLeaseReleased(in)
	}
	return l.stored, err
}

// removeLease implements leaseStore: it removes the record, then the liveness key, if they are still ours.
func (l *natsLease) removeLease(ctx context.Context) error {
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
