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
	reg     *FileRegistry
	updates chan updateRequest
	release chan struct{} // closed by the first Release
	once    chan struct{} // holds a token until the first Release
	done    chan struct{} // closed when the goroutine has ended
	err     error         // of the removal; valid after done
	lost    chan struct{} // closed when superseded is set

	in         Instance // the registered instance, or the one to register
	file       leaseFileName
	record     []byte // JSON of in and the holder
	count      uint64 // of the most recent write attempt
	written    bool   // record is known to be in the file
	superseded bool   // a newer registration has replaced ours
}

func (f *FileRegistry) newLease(in Instance) (*fileLease, error) {
	l := &fileLease{
		reg:     f,
		updates: make(chan updateRequest),
		release: make(chan struct{}),
		once:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		lost:    make(chan struct{}),
	}
	l.once <- struct{}{}
	l.file = leaseFileName{instanceKey{in.Kind, in.ID}, in.Epoch, newHolder()}
	return l, l.setRecord(in)
}

// startLease starts the goroutine of l unless the registry was closed.
func (f *FileRegistry) startLease(l *fileLease) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return fault.New(fault.Unavailable, "%s: the registry is closed", l.describeOp("register"))
	}
	ctx, stop := context.WithCancel(context.Background())
	f.mu.held[l.file.holder] = stop
	f.leases.Go(func() {
		defer close(l.done)
		defer f.forgetLease(l.file.holder)
		l.runLease(ctx)
	})
	return nil
}

func (f *FileRegistry) forgetLease(holder string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.held[holder]() // releases the context
	delete(f.mu.held, holder)
}

func (l *fileLease) describeOp(verb string) string {
	return fmt.Sprintf("%s %s %d", verb, l.file.kind, l.file.id)
}

// setRecord makes in the instance to register.
func (l *fileLease) setRecord(in Instance) error {
	in.Unconfirmed = false
	data, err := encodeRecord(instanceRecord{Instance: in, Holder: l.file.holder})
	if err != nil {
		return err
	}
	in.Meta = nil // kept in record only
	l.in, l.record, l.written = in, data, false
	return nil
}

// writeFile writes the record with the next counter value.
func (l *fileLease) writeFile() error {
	l.count++
	if err := l.reg.replaceFile(l.file, encodeFile(l.record, l.count)); err != nil {
		return err
	}
	l.written = true
	return nil
}

// claimInstance registers the instance: it writes the file when no registration with an equal or
// higher epoch is alive, and withdraws it if a newer one was written meanwhile. Then it removes the
// files of older epochs; their processes notice that they were replaced.
func (l *fileLease) claimInstance(ctx context.Context) error {
	for {
		rivals, err := l.listRivals(func(n leaseFileName) bool { return n.epoch >= l.file.epoch })
		if err != nil && ignoreMissing(err) != nil {
			return errDirUnavailable(l.describeOp("register"), err)
		}
		if len(rivals) == 0 {
			break
		}
		if err := l.awaitDead(ctx, rivals[0]); err != nil {
			return err
		}
	}
	err := l.writeFile()
	if err == nil {
		err = l.resolveRivals()
	}
	if err != nil && fault.CodeOf(err) != fault.Conflict {
		_ = l.reg.removeFile(l.file) // otherwise its lease expires
		return errDirUnavailable(l.describeOp("register"), err)
	}
	return err
}

// listRivals returns the matching files of other registrations of the instance.
func (l *fileLease) listRivals(match func(leaseFileName) bool) ([]leaseFileName, error) {
	return l.reg.listFiles(func(n leaseFileName) bool {
		return n.instanceKey == l.file.instanceKey && n.holder != l.file.holder && match(n)
	})
}

// awaitDead returns nil when the process of n is dead or has released its registration, and its
// file is gone. It returns a Conflict if the process is alive, which means that its file changes
// within a TTL.
func (l *fileLease) awaitDead(ctx context.Context, n leaseFileName) error {
	first, err := l.reg.readLeaseFile(n)
	for start := time.Now(); ; {
		switch {
		case err != nil && ignoreMissing(err) == nil:
			return nil
		case err != nil:
			return errDirUnavailable(l.describeOp("register"), err)
		case l.reg.holdsLease(n.holder):
			return errInstanceHeld(l.in, n.epoch)
		case time.Since(start) >= l.reg.cfg.TTL:
			if err := l.reg.removeFile(n); err != nil {
				return errDirUnavailable(l.describeOp("register"), err)
			}
			return nil
		}
		if err := backoff.SleepContext(ctx, l.reg.cfg.Interval); err != nil {
			return err
		}
		var now []byte
		if now, err = l.reg.readLeaseFile(n); err == nil && !bytes.Equal(first, now) {
			return errInstanceHeld(l.in, n.epoch)
		}
	}
}

// resolveRivals withdraws our file if a newer registration exists, and removes the older ones
// otherwise.
func (l *fileLease) resolveRivals() error {
	rivals, err := l.listRivals(func(leaseFileName) bool { return true })
	if err != nil {
		return err
	}
	for _, n := range rivals {
		if n.isNewerThan(l.file) {
			_ = l.reg.removeFile(l.file) // otherwise its lease expires; the newer one wins anyway
			return errInstanceHeld(l.in, n.epoch)
		}
	}
	for _, n := range rivals {
		if n.epoch < l.file.epoch {
			_ = l.reg.removeFile(n) // otherwise its own process or a watcher removes it
		}
	}
	return nil
}

// runLease refreshes the registration and serves requests until the lease is released or the
// registry is closed.
func (l *fileLease) runLease(ctx context.Context) {
	timer := time.NewTimer(l.refreshInterval())
	defer timer.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			l.err = fault.New(fault.Unavailable, "%s: the registry was closed before; the lease runs out by itself", l.describeOp("release"))
			return
		case <-l.release:
			err := l.reg.removeFile(l.file)
			l.reg.wakeWatches()
			if err != nil {
				l.err = errDirUnavailable(l.describeOp("release"), err)
			}
			return
		case u := <-l.updates:
			u.reply <- l.applyUpdate(u.in)
			if !l.written {
				timer.Reset(l.retryInterval())
			}
			continue
		case <-timer.C:
		}
		if l.superseded {
			continue // still answer requests, but refresh no more
		}
		err := l.refreshFile()
		log := l.reg.cfg.Log.With("kind", l.file.kind, "id", uint64(l.file.id))
		switch {
		case err == nil && failed:
			failed = false
			log.Info("registration refreshed again")
		case err == nil:
		case fault.CodeOf(err) == fault.Conflict:
			log.Error("registration lost to another holder", "err", err)
			continue
		case !failed:
			failed = true
			log.Warn("registration cannot be refreshed", "err", err)
		}
		if failed {
			timer.Reset(l.retryInterval())
		} else {
			timer.Reset(l.refreshInterval())
		}
	}
}

// refreshInterval returns a third of the TTL, less up to a tenth at random, so that two refreshes
// may fail and many processes do not refresh in lockstep.
func (l *fileLease) refreshInterval() time.Duration {
	d := l.reg.cfg.TTL / 3
	return d - rand.N(d/10+1)
}

// retryInterval returns the pause before a failed refresh is retried.
func (l *fileLease) retryInterval() time.Duration { return max(l.reg.cfg.TTL/10, time.Millisecond) }

// refreshFile rewrites the file, even if it was deleted or changed, unless a newer registration
// exists.
func (l *fileLease) refreshFile() error {
	newer, err := l.listRivals(func(n leaseFileName) bool { return n.isNewerThan(l.file) })
	if err != nil && ignoreMissing(err) != nil {
		return errDirUnavailable(l.describeOp("refresh"), err)
	}
	if len(newer) > 0 {
		l.markSuperseded()
		_ = l.reg.removeFile(l.file) // otherwise a watcher removes it
		return errInstanceHeld(l.in, newer[0].epoch)
	}
	if err := l.writeFile(); err != nil {
		return errDirUnavailable(l.describeOp("refresh"), err)
	}
	return nil
}

// applyUpdate serves an Update.
func (l *fileLease) applyUpdate(in Instance) error {
	if l.superseded {
		return errLeaseReleased(in)
	}
	if err := checkSameIdentity(l.in, in); err != nil {
		return err
	}
	if err := l.setRecord(in); err != nil {
		return err
	}
	defer l.reg.wakeWatches()
	return l.refreshFile()
}

// Update implements Lease.
func (l *fileLease) Update(ctx context.Context, in Instance) error {
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
func (l *fileLease) Lost() <-chan struct{} { return l.lost }

// markSuperseded records that a newer incarnation of the instance is registered.
func (l *fileLease) markSuperseded() {
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
