package disco

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
)

// maxClaimAttempts bounds how often a registration is retried because other processes write the
// same keys.
const maxClaimAttempts = 16

// claimInstance makes the store's registration of the instance ours: first the liveness key, which
// decides between holders, then the record. It reads both before it writes either, the record
// first, and each write requires the revision that was read. So a process which overwrites
// another's record has read it before it claimed the liveness key: of several concurrent claims,
// the one with the highest epoch ends up with both.
func (l *natsLease) claimInstance(ctx context.Context) error {
	b, err := l.reg.openBucket(ctx)
	if err != nil {
		return err
	}
	for range maxClaimAttempts {
		err = l.tryClaim(ctx, b)
		if !isLostRace(err) {
			return err
		}
	}
	return fault.New(fault.Unavailable, "%s: others keep changing the same keys; try again", l.describeOp("register"))
}

// tryClaim makes one attempt. If isLostRace(err), the caller should retry.
func (l *natsLease) tryClaim(ctx context.Context, b jetstream.KeyValue) error {
	recordRev, err := lastRevision(ctx, b, recordKey(l.key()))
	if err != nil {
		return err
	}
	held, leaseRev, err := l.readClaim(ctx, b)
	if err != nil {
		return err
	}
	if held.Holder != "" && held.Holder != l.rec.Holder && held.Epoch >= l.rec.Epoch {
		return errInstanceHeld(l.rec.Instance, held.Epoch)
	}
	if leaseRev == 0 { // missing, or a deletion marker, which Create handles
		leaseRev, err = b.Create(ctx, leaseKey(l.key()), l.claim, jetstream.KeyTTL(l.reg.cfg.TTL))
	} else {
		leaseRev, err = l.publishLease(ctx, leaseRev)
	}
	if err != nil {
		return err
	}
	l.leaseRev = leaseRev
	return l.putRecord(ctx, b, recordRev)
}

// readClaim returns the current claim and its revision; an empty claim and 0 if there is none. An
// undecodable claim counts as empty, so it can be replaced.
func (l *natsLease) readClaim(ctx context.Context, b jetstream.KeyValue) (leaseClaim, uint64, error) {
	e, err := b.Get(ctx, leaseKey(l.key()))
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return leaseClaim{}, 0, nil
	case err != nil:
		return leaseClaim{}, 0, err
	}
	c, err := decodeClaim(e.Value())
	if err != nil {
		l.reg.malformed.Add(1)
		return leaseClaim{}, e.Revision(), nil
	}
	return c, e.Revision(), nil
}

// putRecord writes the record if rev is its last revision; rev 0 requires that there is none. It
// also writes an unchanged record, because a watcher may be about to remove the existing one as
// garbage.
func (l *natsLease) putRecord(ctx context.Context, b jetstream.KeyValue, rev uint64) (err error) {
	key := recordKey(l.key())
	if rev == 0 {
		rev, err = b.Create(ctx, key, l.data)
	} else {
		rev, err = b.Update(ctx, key, l.data, rev)
	}
	if err != nil {
		return err
	}
	l.recordRev, l.stored = rev, true
	return nil
}

// lastRevision returns the revision of a key, or 0 if there is none.
func lastRevision(ctx context.Context, b jetstream.KeyValue, key string) (uint64, error) {
	e, err := b.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return e.Revision(), nil
}
