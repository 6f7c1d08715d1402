package xfer

import (
	"context"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
)

// closingPlane is not reached, but for one time, by a connection which is being closed then.
type closingPlane struct {
	Plane
	pool     *lanePool
	reaching time.Time
	reached  bool
}

func (p *closingPlane) openWhole(context.Context, Descriptor) (*sharedLane, error) {
	if p.reached || time.Now().Before(p.reaching) {
		return nil, fault.New(fault.Unavailable, "refused")
	}
	p.reached = true
	near, far := net.Pipe()
	far.Close()
	l := newSharedLane(p.pool, &lane{conn: near})
	l.mu.users, l.mu.closing = 1, true
	return l, nil
}

// TestRetryHasOneDeadline: a small transfer whose connection is closed before it begins has no more time to open another one.
func TestRetryHasOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const within = 10 * time.Second
		began := time.Now()
		var cfg Config
		cfg.EnsureDefaults()
		p := &closingPlane{pool: newLanePool(&cfg, TCP, nil), reaching: began.Add(within - 3*time.Second)}
		attempts := 0
		var opening []bool
		r := &RetryPlane{
			Plane: p, Until: began.Add(within), OnAttempt: func(error) { attempts++ }, OnOpening: func(b bool) { opening = append(opening, b) },
		}
		err := Write(t.Context(), r, Descriptor{Size: 5}, nil, []byte("bytes"))
		if took := time.Since(began); fault.CodeOf(err) != fault.Unavailable || !p.reached || took > within || took < within-maxRetryWait*3/2 {
			t.Errorf("%d attempts in %v, and then %v", attempts, took, err)
		}
		if !slices.Equal(opening, []bool{true, false, true, false}) {
			t.Errorf("attempts began and ended: %v", opening)
		}
	})
}
