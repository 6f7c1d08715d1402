package xfer

import (
	"context"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// RetryPlane is a Plane whose writers try again while an owner cannot be reached, or has no room for another connection.
// An attempt which fails that way has claimed no transfer and sent no byte of one. What fails after that is not repeated:
// the owner may have the bytes.
type RetryPlane struct {
	Plane
	// Within is for how long attempts begin, from the first one on.
	Within time.Duration
	// OnAttempt, if not nil, gets the outcome of each attempt to open a transfer: nil if it is open. It must not wait.
	OnAttempt func(error)
}

var (
	_ Plane       = (*RetryPlane)(nil)
	_ wholeOpener = (*RetryPlane)(nil)
)

// The waits between two attempts to reach an owner.
const (
	minRetryWait = 50 * time.Millisecond
	maxRetryWait = time.Second
)

// Open implements Plane.
func (p *RetryPlane) Open(ctx context.Context, d Descriptor) (TransferWriter, error) {
	return openRepeatedly(ctx, p, func() (TransferWriter, error) { return p.Plane.Open(ctx, d) })
}

// openWhole implements wholeOpener.
func (p *RetryPlane) openWhole(ctx context.Context, d Descriptor) (*sharedLane, error) {
	o, ok := p.Plane.(wholeOpener)
	if !ok {
		return nil, nil
	}
	return openRepeatedly(ctx, p, func() (*sharedLane, error) { return o.openWhole(ctx, d) })
}

// openRepeatedly calls open until it fails for good or succeeds, or the time of p or ctx ends.
func openRepeatedly[W any](ctx context.Context, p *RetryPlane, open func() (W, error)) (W, error) {
	last := time.Now().Add(p.Within)
	wait := backoff.Backoff{Min: minRetryWait, Max: maxRetryWait}
	for {
		w, err := open()
		if p.OnAttempt != nil {
			p.OnAttempt(err)
		}
		code := fault.CodeOf(err)
		if err == nil || ctx.Err() != nil || code != fault.Unavailable && code != fault.Overloaded {
			return w, err
		}
		pause := wait.Next()
		if time.Now().Add(pause).After(last) {
			return w, err
		}
		if ended := backoff.SleepContext(ctx, pause); ended != nil {
			return w, ended
		}
	}
}
