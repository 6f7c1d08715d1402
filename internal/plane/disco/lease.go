package disco

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"penstock/core/fault"
)

// leaseStore is one registration in a store. The methods are called by one goroutine.
type leaseStore interface {
	// refreshLease keeps the registration alive. A Conflict means that a newer incarnation of the instance has
	// replaced it, and a closedStoreError that no later call can succeed.
	refreshLease(ctx context.Context) error
	// applyUpdate serves an Update. stored is whether the store has the instance: otherwise a refresh follows
	// soon.
	applyUpdate(ctx context.Context, in Instance) (stored bool, err error)
	// removeLease removes the registration.
	removeLease(ctx context.Context) error
}

// closedStoreError is the error of a store which is closed for good.
type closedStoreError struct{ error }

// lease is the Lease of a registration in a store. Its own goroutine refreshes the registration and does all
// other work on it, one task at a time.
type lease struct {
	store        leaseStore
	subject      instanceKey
	log          *slog.Logger
	refreshAfter func() time.Duration // the time from one refresh to the next
	retryAfter   func() time.Duration // the pause before a failed refresh is retried

	updates    chan updateRequest
	release    chan struct{} // closed by the first Release
	once       sync.Once     // of the first Release
	done       chan struct{} // closed when the goroutine has ended
	err        error         // of the removal; valid after done
	lost       chan struct{} // closed when superseded is set
	superseded bool          // a newer incarnation has replaced ours
}

// updateRequest asks the goroutine for an Update.
type updateRequest struct {
	ctx   context.Context // of the call, which waits for the reply
	in    Instance
	reply chan error
}

func newLease(store leaseStore, subject instanceKey, log *slog.Logger) *lease {
	return &lease{
		store: store, subject: subject, log: log.With("kind", subject.kind, "id", uint64(subject.id)),
		updates: make(chan updateRequest), release: make(chan struct{}), done: make(chan struct{}), lost: make(chan struct{}),
	}
}

// newHolder returns 128 random bits in hex.
func newHolder() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (l *lease) describeOp(verb string) string {
	return fmt.Sprintf("%s %s %d", verb, l.subject.kind, l.subject.id)
}

// runLease refreshes the registration and serves requests until the lease is released, the store is closed, or
// ctx ends.
func (l *lease) runLease(ctx context.Context) {
	timer := time.NewTimer(l.refreshAfter())
	defer timer.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			l.err = fault.New(fault.Unavailable, "%s: the registry was closed before; the lease runs out by itself", l.describeOp("release"))
			return
		case <-l.release:
			l.err = l.store.removeLease(ctx)
			return
		case u := <-l.updates:
			u.reply <- l.serveUpdate(u, timer)
			continue
		case <-timer.C:
		}
		if l.superseded {
			continue // still answer requests, but refresh no more
		}
		err := l.store.refreshLease(ctx)
		if closed, ok := errors.AsType[closedStoreError](err); ok {
			l.err = closed.error
			l.log.Error("registration ends: the connection was closed")
			return
		}
		switch {
		case ctx.Err() != nil:
		case err != nil && fault.CodeOf(err) == fault.Conflict:
			l.markSuperseded()
			l.log.Error("registration lost to another holder", "err", err)
		case err != nil && !failed:
			failed = true
			l.log.Warn("registration cannot be refreshed", "err", err)
		case err == nil && failed:
			failed = false
			l.log.Info("registration refreshed again")
		}
		if failed {
			timer.Reset(l.retryAfter())
		} else {
			timer.Reset(l.refreshAfter())
		}
	}
}

// serveUpdate makes a change of the instance, or has it made soon.
func (l *lease) serveUpdate(u updateRequest, timer *time.Timer) error {
	if l.superseded {
		return errLeaseReleased(u.in)
	}
	stored, err := l.store.applyUpdate(u.ctx, u.in)
	if !stored {
		timer.Reset(l.retryAfter())
	}
	return err
}

// Update implements Lease.
func (l *lease) Update(ctx context.Context, in Instance) error {
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
func (l *lease) Lost() <-chan struct{} { return l.lost }

// markSuperseded records that a newer incarnation of the instance is registered. It may be called again.
func (l *lease) markSuperseded() {
	if !l.superseded {
		l.superseded = true
		close(l.lost)
	}
}

// Release implements Lease.
func (l *lease) Release(ctx context.Context) error {
	l.once.Do(func() { close(l.release) })
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaseSet has the running leases of a registry.
type leaseSet struct {
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		closed bool
		stops  map[string]context.CancelFunc // by holder
	}
}

// startLease starts the goroutine of l unless the registry was closed.
func (s *leaseSet) startLease(l *lease, holder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return fault.New(fault.Unavailable, "%s: the registry is closed", l.describeOp("register"))
	}
	if s.mu.stops == nil {
		s.mu.stops = map[string]context.CancelFunc{}
	}
	ctx, stop := context.WithCancel(context.Background())
	s.mu.stops[holder] = stop
	s.running.Go(func() {
		defer close(l.done)
		defer s.forgetLease(holder)
		l.runLease(ctx)
	})
	return nil
}

func (s *leaseSet) forgetLease(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.stops[holder]() // releases the context
	delete(s.mu.stops, holder)
}

// holdsLease reports whether a running lease has that holder.
func (s *leaseSet) holdsLease(holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stops[holder] != nil
}

// closeLeases stops all leases without a release, and waits for them.
func (s *leaseSet) closeLeases() {
	s.mu.Lock()
	s.mu.closed = true
	for _, stop := range s.mu.stops {
		stop()
	}
	s.mu.Unlock()
	s.running.Wait()
}
