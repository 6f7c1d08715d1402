package disco

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// fileLease is one registration. Its own goroutine replaces the file and does all other work on the
// registration, one task at a time, so the fields need no lock.
type fileLease struct {
	reg     *File
	updates chan update
	release chan struct{} // closed by the first Release
	once    chan struct{} // holds a token until the first Release
	done    chan struct{} // closed when the goroutine has ended
	err     error         // of the removal; valid after done
	lost    chan struct{} // closed when superseded is set

	in         Instance // the registered instance, or the one to register
	file       fileName
	record     []byte // JSON of in and the holder
	count      uint64 // of the most recent write attempt
	written    bool   // record is known to be in the file
	superseded bool   // a newer registration has replaced ours
}

func (f *File) newLease(in Instance) (*fileLease, error) {
	l := &fileLease{
		reg:     f,
		updates: make(chan update),
		release: make(chan struct{}),
		once:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		lost:    make(chan struct{}),
	}
	l.once <- struct{}{}
	l.file = fileName{name{in.Kind, in.ID}, in.Epoch, newHolder()}
	return l, l.describe(in)
}

// startLease starts the goroutine of l unless the registry was closed.
func (f *File) keep(l *fileLease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return fault.New(fault.Unavailable, "%s: the registry is closed", l.op("register"))
	}
	ctx, stop := context.WithCancel(context.Background())
	f.mu.held[l.file.holder] = stop
	f.leases.Go(func() {
		defer close(l.done)
		defer f.forget(l.file.holder)
		l.run(ctx)
	})
	return nil
}

func (f *File) forget(holder string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.held[holder]() // releases the context
	delete(f.mu.held, holder)
}

func (l *fileLease) op(verb string) string {
	return fmt.Sprintf("%s %s %d", verb, l.file.kind, l.file.id)
}

// setRecord makes in the instance to register.
func (l *fileLease) describe(in Instance) error {
	in.Unconfirmed = false
	data, err := encodeRecord(record{Instance: in, Holder: l.file.holder})
	if err != nil {
		return err
	}
	in.Meta = nil // kept in record only
	l.in, l.record, l.written = in, data, false
	return nil
}

// writeFile writes the record with the next counter value.
func (l *fileLease) write() error {
	l.count++
	if err := l.reg.store(l.file, encodeFile(l.record, l.count)); err != nil {
		return err
	}
	l.written = true
	return nil
}

// claimInstance registers the instance: it writes the file when no registration with an equal or
// higher epoch is alive, and withdraws it if a newer one was written meanwhile. Then it removes the
// files of older epochs; their processes notice that they were replaced.
func (l *fileLease) take(ctx context.Context) error {
	for {
		rivals, err := l.rivals(func(n fileName) bool { return n.epoch >= l.file.epoch })
		if err != nil && ignoreMissing(err) != nil {
			return dirUnavailable(l.op("register"), err)
		}
		if len(rivals) == 0 {
			break
		}
		if err := l.outlive(ctx, rivals[0]); err != nil {
			return err
		}
	}
	err := l.write()
	if err == nil {
		err = l.settle()
	}
	if err != nil && fault.Of(err) != fault.Conflict {
		_ = l.reg.remove(l.file) // otherwise its lease expires
		return dirUnavailable(l.op("register"), err)
	}
	return err
}

// listRivals returns the matching files of other registrations of the instance.
func (l *fileLease) rivals(match func(fileName) bool) ([]fileName, error) {
	return l.reg.list(func(n fileName) bool {
		return n.name == l.file.name && n.holder != l.file.holder && match(n)
	})
}

// awaitDead returns nil when the process of n is dead or has released its registration, and its
// file is gone. It returns a Conflict if the process is alive, which means that its file changes
// within a TTL.
func (l *fileLease) outlive(ctx context.Context, n fileName) error {
	first, err := l.reg.load(n)
	for start := time.Now(); ; {
		switch {
		case err != nil && ignoreMissing(err) == nil:
			return nil
		case err != nil:
			return dirUnavailable(l.op("register"), err)
		case l.reg.holds(n.holder):
			return errHeld(l.in, n.epoch)
		case time.Since(start) >= l.reg.cfg.TTL:
			if err := l.reg.remove(n); err != nil {
				return dirUnavailable(l.op("register"), err)
			}
			return nil
		}
		if err := backoff.Pause(ctx, l.reg.cfg.Every); err != nil {
			return err
		}
		var now []byte
		if now, err = l.reg.load(n); err == nil && !bytes.Equal(first, now) {
			return errHeld(l.in, n.epoch)
		}
	}
}

// resolveRivals withdraws our file if a newer registration exists, and removes the older ones
// otherwise.
func (l *fileLease) settle() error {
	rivals, err := l.rivals(func(fileName) bool { return true })
	if err != nil {
		return err
	}
	for _, n := range rivals {
		if n.newer(l.file) {
			_ = l.reg.remove(l.file) // otherwise its lease expires; the newer one wins anyway
			return errHeld(l.in, n.epoch)
		}
	}
	for _, n := range rivals {
		if n.epoch < l.file.epoch {
			_ = l.reg.remove(n) // otherwise its own process or a watcher removes it
		}
	}
	return nil
}

// runLease refreshes the registration and serves requests until the lease is released or the
// registry is closed.
func (l *fileLease) run(ctx context.Context) {
	timer := time.NewTimer(l.refreshAfter())
	defer timer.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			l.err = fault.New(fault.Unavailable, "%s: the registry was closed before; the lease runs out by itself", l.op("release"))
			return
		case <-l.release:
			err := l.reg.remove(l.file)
			l.reg.poke()
			if err != nil {
				l.err = dirUnavailable(l.op("release"), err)
			}
			return
		case u := <-l.updates:
			u.reply <- l.update(u.in)
			if !l.written {
				timer.Reset(l.retryAfter())
			}
			continue
		case <-timer.C:
		}
		if l.superseded {
			continue // still answer requests, but refresh no more
		}
		err := l.refresh()
		log := l.reg.cfg.Log.With("kind", l.file.kind, "id", uint64(l.file.id))
		switch {
		case err == nil && failed:
			failed = false
			log.Info("registration refreshed again")
		case err == nil:
		case fault.Of(err) == fault.Conflict:
			log.Error("registration lost to another holder", "err", err)
			continue
		case !failed:
			failed = true
			log.Warn("registration cannot be refreshed", "err", err)
		}
		if failed {
			timer.Reset(l.retryAfter())
		} else {
			timer.Reset(l.refreshAfter())
		}
	}
}

// refreshInterval returns a third of the TTL, less up to a tenth at random, so that two refreshes
// may fail and many processes do not refresh in lockstep.
func (l *fileLease) refreshAfter() time.Duration {
	d := l.reg.cfg.TTL / 3
	return d - rand.N(d/10+1)
}

// retryInterval returns the pause before a failed refresh is retried.
func (l *fileLease) retryAfter() time.Duration { return max(l.reg.cfg.TTL/10, time.Millisecond) }

// refreshFile rewrites the file, even if it was deleted or changed, unless a newer registration
// exists.
func (l *fileLease) refresh() error {
	newer, err := l.rivals(func(n fileName) bool { return n.newer(l.file) })
	if err != nil && ignoreMissing(err) != nil {
		return dirUnavailable(l.op("refresh"), err)
	}
	if len(newer) > 0 {
		l.supersede()
		_ = l.reg.remove(l.file) // otherwise a watcher removes it
		return errHeld(l.in, newer[0].epoch)
	}
	if err := l.write(); err != nil {
		return dirUnavailable(l.op("refresh"), err)
	}
	return nil
}

// applyUpdate serves an Update.
func (l *fileLease) update(in Instance) error {
	if l.superseded {
		return errReleased(in)
	}
	if err := sameIdentity(l.in, in); err != nil {
		return err
	}
	if err := l.describe(in); err != nil {
		return err
	}
	defer l.reg.poke()
	return l.refresh()
}

// Update implements Lease.
func (l *fileLease) Update(ctx context.Context, in Instance) error {
	u := update{ctx: ctx, in: in, reply: make(chan error, 1)}
	select {
	case l.updates <- u:
		return <-u.reply
	case <-l.done:
		return errReleased(in)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Lost implements Lease.
func (l *fileLease) Lost() <-chan struct{} { return l.lost }

// markSuperseded records that a newer incarnation of the instance is registered.
func (l *fileLease) supersede() {
	l.superseded = true
	close(l.lost)
}

// Release implements Lease.
func (l *fileLease) Release(ctx context.Context) error {
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
