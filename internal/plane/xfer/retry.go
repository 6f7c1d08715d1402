package xfer

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// RetryPlane is a Plane whose writers try again while an owner cannot be reached, or has no room for another connection.
// An attempt which fails that way has claimed no transfer and sent no byte of one. What fails after that is not repeated:
// the owner may have the bytes.
type RetryPlane struct {
	Plane
	// Until is when the last attempt begins at the latest. The first one is made in any case.
	Until time.Time
	// OnOpening, if not nil, gets true before the attempts of a call, and false after them. It must not wait.
	OnOpening func(bool)
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
	if p.OnOpening != nil {
		p.OnOpening(true)
		defer p.OnOpening(false)
	}
	wait := backoff.Backoff{Min: minRetryWait, Max: maxRetryWait}
	for {
		w, err := open()
		if p.OnAttempt != nil {
			p.OnAttempt(err)
		}
		if ctx.Err() != nil || !IsRepeatable(err) {
			return w, err
		}
		pause := wait.Next()
		if time.Now().Add(pause).After(p.Until) {
			return w, err
		}
		if ended := backoff.SleepContext(ctx, pause); ended != nil {
			return w, ended
		}
	}
}

// IsRepeatable reports whether a further attempt to open a transfer may succeed after one which failed with err: the owner
// was not reached, or had no room.
func IsRepeatable(err error) bool {
	code := fault.CodeOf(err)
	return err != nil && (code == fault.Unavailable || code == fault.Overloaded) && !isLasting(err)
}

// lastingError is a failure to open a transfer which a further attempt does not mend.
type lastingError struct{ error }

// Unwrap returns the error itself.
func (e lastingError) Unwrap() error { return e.error }

// isLasting reports whether err comes of what a further attempt finds as it was: of settings or certificates, of an address
// which leads elsewhere, or of a closed plane. Of several joined errors, by different ways to an owner, all must.
func isLasting(err error) bool {
	switch e := err.(type) {
	case lastingError, tls.RecordHeaderError, *tls.CertificateVerificationError:
		return true
	case *net.OpError:
		if e.Op == "remote error" || e.Op == "local error" { // an alert of TLS
			return true
		}
		return isLasting(e.Err)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !isLasting(err) })
	case interface{ Unwrap() error }:
		return isLasting(e.Unwrap())
	}
	return false
}
