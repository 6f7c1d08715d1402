package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// natsLock is an acquired lock: a key in a bucket whose keys expire, renewed while it is held.
type natsLock struct {
	archive    *NATSArchive
	key        string
	kv         jetstream.KeyValue
	token      uint64    // revision of the key at acquisition
	revision   uint64    // revision of the key after our last write
	validUntil time.Time // no other process can hold the lock until then
}

// acquireLock creates the key. An existing key is a Conflict.
func (l *natsLock) acquireLock(ctx context.Context) error {
	var err error
	if l.kv, err = l.archive.lockBucket(ctx); err != nil {
		return err
	}
	asked := time.Now()
	l.revision, err = l.kv.Create(ctx, l.key, nil)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return errLockHeld(l.key)
	}
	l.token, l.validUntil = l.revision, asked.Add(l.archive.cfg.TTL)
	return err
}

// holdLock runs held and renews the lock meanwhile.
func (l *natsLock) holdLock(ctx context.Context, held func(context.Context, uint64) error) error {
	hctx, lose := context.WithCancelCause(ctx)
	var renewer sync.WaitGroup
	stop := make(chan struct{})
	renewer.Go(func() { l.renewLock(hctx, stop, lose) })
	err := held(hctx, l.token)
	lost := context.Cause(hctx)
	close(stop)
	lose(nil)
	renewer.Wait()
	l.releaseLock(ctx)
	if err != nil && ctx.Err() == nil && lost != nil {
		return lost // more specific than held's error
	}
	return err
}

// renewLock rewrites the key periodically, until stop is closed or the lock is no longer known to
// be ours. A renewal counts only if the server confirms it, and its lease starts when the request
// was sent.
func (l *natsLock) renewLock(ctx context.Context, stop <-chan struct{}, lose context.CancelCauseFunc) {
	ttl := l.archive.cfg.TTL
	timer := time.NewTimer(ttl / 3)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
		asked := time.Now()
		rctx, cancel := context.WithDeadline(ctx, l.validUntil)
		rev, err := l.kv.Update(rctx, l.key, nil, l.revision)
		cancel()
		switch {
		case err == nil:
			l.revision, l.validUntil = rev, asked.Add(ttl)
			timer.Reset(ttl / 3)
		case errors.Is(err, jetstream.ErrKeyRevisionMismatch), !time.Now().Before(l.validUntil):
			lose(fault.New(fault.Conflict, "lock %s: it was lost while it was held", l.key))
			return
		default:
			timer.Reset(min(ttl/12, time.Until(l.validUntil)))
		}
	}
}

// releaseLock deletes the key if it is still ours. If the server is unreachable the key expires.
func (l *natsLock) releaseLock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	ctx, stop := natsd.WhileConnected(ctx, l.archive.nc)
	defer stop()
	_ = l.kv.Delete(ctx, l.key, jetstream.LastRevision(l.revision))
}

// lockBucket opens the bucket of locks; it creates the bucket if it is missing. An existing bucket
// keeps the settings that its operator gave it, but its TTL must equal cfg.TTL.
func (a *NATSArchive) lockBucket(ctx context.Context) (jetstream.KeyValue, error) {
	b, err := a.js.KeyValue(ctx, a.locks)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		b, err = a.createLockBucket(ctx)
	}
	if err != nil {
		return nil, err
	}
	s, err := b.Status(ctx)
	if err != nil {
		return nil, err
	}
	if s.TTL() != a.cfg.TTL {
		return nil, fault.New(fault.Invalid, "locks: the keys of bucket %s run out after %v, not %v; delete the bucket, it is made anew", a.locks, s.TTL(), a.cfg.TTL)
	}
	return b, nil
}

func (a *NATSArchive) createLockBucket(ctx context.Context) (jetstream.KeyValue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, done := natsd.DetachedContext(ctx, a.nc)
	defer done()
	b, err := a.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: a.locks, Description: "Penstock locks", TTL: a.cfg.TTL,
		MaxBytes: 1 << 20, Storage: jetstream.FileStorage, Replicas: a.cfg.Replicas,
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
		return a.js.KeyValue(ctx, a.locks)
	}
	return b, err
}
