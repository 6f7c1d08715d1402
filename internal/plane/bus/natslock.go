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

// natsLock is a lock that was taken: a key in a bucket whose keys run out, renewed
// while it is held.
type natsLock struct {
	archive *NATSArchive
	key     string
	kv      jetstream.KeyValue
	token   uint64    // revision by which it was taken
	rev     uint64    // of the key as we wrote it last
	sure    time.Time // until when nobody else can have it
}

// take creates the key, or says that it is there.
func (l *natsLock) take(ctx context.Context) error {
	var err error
	if l.kv, err = l.archive.lockBucket(ctx); err != nil {
		return err
	}
	asked := time.Now()
	l.rev, err = l.kv.Create(ctx, l.key, nil)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return errHeld(l.key)
	}
	l.token, l.sure = l.rev, asked.Add(l.archive.cfg.TTL)
	return err
}

// hold runs held and renews the lock meanwhile.
func (l *natsLock) hold(ctx context.Context, held func(context.Context, uint64) error) error {
	hctx, lose := context.WithCancelCause(ctx)
	var renewer sync.WaitGroup
	stop := make(chan struct{})
	renewer.Go(func() { l.renew(hctx, stop, lose) })
	err := held(hctx, l.token)
	lost := context.Cause(hctx)
	close(stop)
	lose(nil)
	renewer.Wait()
	l.leave(ctx)
	if err != nil && ctx.Err() == nil && lost != nil {
		return lost // says more than that a context ended
	}
	return err
}

// renew writes the key again and again, until stop or until it cannot be sure that
// the lock is ours. It takes the server's answer for what counts, and the moment of
// its question for the beginning of the lease.
func (l *natsLock) renew(ctx context.Context, stop <-chan struct{}, lose context.CancelCauseFunc) {
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
		rctx, cancel := context.WithDeadline(ctx, l.sure)
		rev, err := l.kv.Update(rctx, l.key, nil, l.rev)
		cancel()
		switch {
		case err == nil:
			l.rev, l.sure = rev, asked.Add(ttl)
			timer.Reset(ttl / 3)
		case errors.Is(err, jetstream.ErrKeyRevisionMismatch), !time.Now().Before(l.sure):
			lose(fault.New(fault.Conflict, "lock %s: it was lost while it was held", l.key))
			return
		default:
			timer.Reset(min(ttl/12, time.Until(l.sure)))
		}
	}
}

// leave gives the lock up, if it is still ours. If the server is away the lock runs
// out.
func (l *natsLock) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	ctx, stop := natsd.WhileConnected(ctx, l.archive.nc)
	defer stop()
	_ = l.kv.Delete(ctx, l.key, jetstream.LastRevision(l.rev))
}

// lockBucket opens the bucket of locks; it creates it if it is missing. An existing
// one keeps the settings that its operator gave it, but its time to live must be ours.
func (a *NATSArchive) lockBucket(ctx context.Context) (jetstream.KeyValue, error) {
	b, err := a.js.KeyValue(ctx, a.locks)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		b, err = a.createLocks(ctx)
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

func (a *NATSArchive) createLocks(ctx context.Context) (jetstream.KeyValue, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, done := natsd.SeeThrough(ctx, a.nc)
	defer done()
	b, err := a.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: a.locks, Description: "Penstock locks", TTL: a.cfg.TTL,
		MaxBytes: 1 << 20, Storage: jetstream.FileStorage, Replicas: a.cfg.Replicas,
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another was faster
		return a.js.KeyValue(ctx, a.locks)
	}
	return b, err
}
