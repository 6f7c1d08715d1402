package xfer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Transfer is the owner's end of a transfer.
//
//	state     event                         next      what happens
//	expected  a writer claims it            claimed   a descriptor is good once
//	expected  Abort, lease, end of Run      over
//	claimed   bytes verified, note read     over      Wait returns the receipt
//	claimed   Abort, lease, end of Run      ending    the writer's connection is interrupted
//	claimed   the connection fails          over
//	ending    the plane has let go of Into  over      Wait returns the reason
//
// In the state over nothing writes to the memory of the transfer.
type Transfer struct {
	registry *registry
	desc     Descriptor
	in       Incoming
	into     [][]byte // in.Into, merged
	verified atomic.Int64
	over     chan struct{} // closed in the state over
	lease    *time.Timer
	mu       struct {
		sync.Mutex
		state     transferState
		interrupt func() // makes the plane let go; set while claimed
		transport Transport
		claimed   time.Time
		err       error // the reason to end
		receipt   Receipt
	}
}

type transferState uint8

const (
	stateExpected transferState = iota
	stateClaimed
	stateEnding
	stateOver
)

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Descriptor returns what a writer needs.
func (t *Transfer) Descriptor() Descriptor { return t.desc }

// Progress returns how many bytes are verified so far.
func (t *Transfer) Progress() int64 { return t.verified.Load() }

// Wait waits until the transfer is over. If ctx ends first, it aborts the transfer and returns
// ctx's error. Once Wait returned, the plane does not touch the memory of the transfer.
func (t *Transfer) Wait(ctx context.Context) (Receipt, error) {
	var gaveUp error
	select {
	case <-t.over:
	case <-ctx.Done():
		gaveUp = newFailure(Aborted, "transfer: the owner has aborted it: %v", ctx.Err())
		t.abortWith(gaveUp)
		<-t.over
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if gaveUp != nil && t.mu.err == gaveUp {
		return Receipt{}, ctx.Err()
	}
	return t.mu.receipt, t.mu.err
}

// Abort ends the transfer, if it is not over, and returns when the plane does not touch its memory
// any more. The writer learns the reason.
func (t *Transfer) Abort(reason error) {
	t.abortWith(newFailure(Aborted, "transfer: the owner has aborted it: %v", reason))
	<-t.over
}

// usedTransport returns the transport of the writer, 0 before one has come.
func (t *Transfer) usedTransport() Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.transport
}

// abortWith makes the transfer end with err, unless it already ends.
func (t *Transfer) abortWith(err error) {
	t.mu.Lock()
	state := t.mu.state
	if state == stateExpected || state == stateClaimed {
		t.mu.state, t.mu.err = stateEnding, err
	}
	interrupt := t.mu.interrupt
	t.mu.Unlock()
	switch state {
	case stateExpected:
		t.finish()
	case stateClaimed:
		// Completing it fails from now on. Its connection is closed, or carries only small transfers which
		// had begun.
		interrupt()
	}
}

// expire ends a transfer whose writer was silent for the lease.
func (t *Transfer) expire() {
	t.abortWith(newFailure(Expired, "transfer: the writer was silent for %v", t.desc.Lease))
}

// endReason returns why t ends, nil if it goes on.
func (t *Transfer) endReason() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.err
}

// claim makes a writer's connection the source of the transfer. It fails if the transfer ends.
func (t *Transfer) claim(by Transport, interrupt func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.state != stateExpected {
		return errUnknown()
	}
	t.mu.state, t.mu.interrupt = stateClaimed, interrupt
	t.mu.transport, t.mu.claimed = by, time.Now()
	t.lease.Reset(t.desc.Lease)
	return nil
}

// addVerified counts a verified chunk and renews the lease, unless the transfer ends.
func (t *Transfer) addVerified(n int) error {
	t.mu.Lock()
	err := t.mu.err
	if err == nil {
		t.lease.Reset(t.desc.Lease)
	}
	t.mu.Unlock()
	if err != nil {
		return err
	}
	verified := t.verified.Add(int64(n))
	if t.in.OnProgress != nil {
		t.in.OnProgress(verified)
	}
	return nil
}

// complete ends a claimed transfer well. If it fails, the transfer is ending, and the caller must
// let go of its memory and call release.
func (t *Transfer) complete(d Digest, note []byte) error {
	t.mu.Lock()
	if t.mu.state != stateClaimed {
		defer t.mu.Unlock()
		return t.mu.err
	}
	t.mu.receipt = Receipt{
		Bytes: t.verified.Load(), Digest: d, Note: append([]byte(nil), note...),
		Transport: t.mu.transport, Took: time.Since(t.mu.claimed),
	}
	t.finishLocked(t.mu.receipt.Took)
	return nil
}

// completeWhole ends a claimed transfer well whose bytes have come at once, as addVerified and complete.
func (t *Transfer) completeWhole(n int, d Digest, note []byte) error {
	if t.in.OnProgress != nil {
		if err := t.addVerified(n); err != nil {
			return err
		}
	} else {
		t.verified.Store(int64(n))
	}
	return t.complete(d, note)
}

// release ends a claimed transfer which failed, by err unless another reason was first. From then
// on the caller must not touch its memory. It returns the reason.
func (t *Transfer) release(err error) error {
	t.mu.Lock()
	if t.mu.err == nil {
		t.mu.err = err
	}
	err = t.mu.err
	t.finishLocked(time.Since(t.mu.claimed))
	return err
}

// finish makes a transfer over which no writer has claimed.
func (t *Transfer) finish() {
	t.mu.Lock()
	t.finishLocked(0)
}

// finishLocked makes a transfer over, and unlocks it.
func (t *Transfer) finishLocked(took time.Duration) {
	t.mu.state = stateOver
	t.mu.interrupt = nil
	r := Report{Side: OwnerSide, Transport: t.mu.transport, Outcome: OutcomeOf(t.mu.err), Bytes: t.verified.Load(), Took: took}
	t.mu.Unlock()
	t.registry.remove(t) // waits for Expect, which sets the lease
	t.lease.Stop()
	t.registry.observer.ObserveTransfer(r)
	close(t.over)
}
