package disco

import (
	"bytes"
	"context"
	"math/rand/v2"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// fileLease is one registration. The goroutine of its lease replaces the file, so the fields need no lock.
type fileLease struct {
	*lease
	reg     *FileRegistry
	in      Instance // the registered instance, or the one to register
	file    leaseFileName
	record  []byte // JSON of in and the holder
	count   uint64 // of the most recent write attempt
	written bool   // record is known to be in the file
}

func (f *FileRegistry) newLease(in Instance) (*fileLease, error) {
	subject := instanceKey{in.Kind, in.ID}
	l := &fileLease{reg: f, file: leaseFileName{subject, in.Epoch, newHolder()}}
	l.lease = newLease(l, subject, f.cfg.Log)
	// A third of the TTL, less up to a tenth at random, so that two refreshes may fail and many processes do
	// not refresh in lockstep.
	l.refreshAfter = func() time.Duration { return f.cfg.TTL/3 - rand.N(f.cfg.TTL/30+1) }
	l.retryAfter = func() time.Duration { return max(f.cfg.TTL/10, time.Millisecond) }
	return l, l.setRecord(in)
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
		case l.reg.leases.holdsLease(n.holder):
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

// removeLease implements leaseStore.
func (l *fileLease) removeLease(context.Context) error {
	err := l.reg.removeFile(l.file)
	l.reg.wakeWatches()
	if err != nil {
		return errDirUnavailable(l.describeOp("release"), err)
	}
	return nil
}

// refreshLease implements leaseStore: it rewrites the file, even if it was deleted or changed, unless a newer
// registration exists.
func (l *fileLease) refreshLease(context.Context) error {
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

// applyUpdate implements leaseStore.
func (l *fileLease) applyUpdate(ctx context.Context, in Instance) (stored bool, err error) {
	if err := checkSameIdentity(l.in, in); err != nil {
		return l.written, err
	}
	if err := l.setRecord(in); err != nil {
		return l.written, err
	}
	defer l.reg.wakeWatches()
	err = l.refreshLease(ctx)
	return l.written, err
}
