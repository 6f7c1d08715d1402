package disco

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
)

// takeAttempts bounds how often a registration starts over because others write
// the same keys.
const takeAttempts = 16

// take makes the instance ours in the store: first the liveness key, which
// decides between holders, then the record. Both are read before either is
// written, the record first, and each write demands the revision that was read.
// So whoever writes the record over another's has read it before it took the
// liveness key: of several who try at once the highest epoch ends up with both.
func (l *natsLease) take(ctx context.Context) error {
	b, err := l.reg.bucket(ctx)
	if err != nil {
		return err
	}
	for range takeAttempts {
		err = l.tryTake(ctx, b)
		if !lostRace(err) {
			return err
		}
	}
	return fault.New(fault.Unavailable, "%s: others keep changing the same keys; try again", l.op("register"))
}

// tryTake is one attempt; lostRace of its error asks for another.
func (l *natsLease) tryTake(ctx context.Context, b jetstream.KeyValue) error {
	recordRev, err := lastRevision(ctx, b, recordKey(l.name()))
	if err != nil {
		return err
	}
	held, leaseRev, err := l.readClaim(ctx, b)
	if err != nil {
		return err
	}
	if held.Holder != "" && held.Holder != l.rec.Holder && held.Epoch >= l.rec.Epoch {
		return errHeld(l.rec.Instance, held.Epoch)
	}
	if leaseRev == 0 { // missing, or a mark of its removal, which Create looks up
		leaseRev, err = b.Create(ctx, leaseKey(l.name()), l.claim, jetstream.KeyTTL(l.reg.cfg.TTL))
	} else {
		leaseRev, err = l.putLease(ctx, leaseRev)
	}
	if err != nil {
		return err
	}
	l.leaseRev = leaseRev
	return l.putRecord(ctx, b, recordRev)
}

// readClaim returns the claim in force and its revision; none and 0 if there is
// none. One that cannot be read gives way.
func (l *natsLease) readClaim(ctx context.Context, b jetstream.KeyValue) (claim, uint64, error) {
	e, err := b.Get(ctx, leaseKey(l.name()))
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return claim{}, 0, nil
	case err != nil:
		return claim{}, 0, err
	}
	c, err := decodeClaim(e.Value())
	if err != nil {
		l.reg.malformed.Add(1)
		return claim{}, e.Revision(), nil
	}
	return c, e.Revision(), nil
}

// putRecord writes the record if rev, or none at all for 0, is its last revision.
// It writes even what is there already, because a watcher may be about to remove
// it as the leftover of a dead process.
func (l *natsLease) putRecord(ctx context.Context, b jetstream.KeyValue, rev uint64) (err error) {
	key := recordKey(l.name())
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

// lastRevision returns the revision of a key; 0 if there is none.
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
