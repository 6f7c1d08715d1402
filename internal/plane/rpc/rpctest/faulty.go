package rpctest

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/rpc"
)

// CallFaults configures how a plane misbehaves. Probabilities are from 0 to 1. The zero value is a
// plane without faults.
type CallFaults struct {
	// Refuse is the probability that a call ends with Unavailable before it reaches its handler.
	Refuse float64
	// Cut is the probability that the connection breaks during a call. The call then ends with
	// Unavailable after at most CutAfter frames, possibly after the last frame.
	Cut      float64
	CutAfter int
	// Delay is the upper bound of a random delay of each call and each frame.
	Delay time.Duration
}

// FaultyPlane wraps another plane and breaks some of its calls.
type FaultyPlane struct {
	inner rpc.Plane
	seed  uint64
	mu    struct {
		sync.Mutex
		faults CallFaults
		calls  map[callTarget]uint64
	}
}

var _ rpc.Plane = (*FaultyPlane)(nil)

type callTarget struct{ addr, method string }

// WithFaults wraps inner. The fate of a call depends only on the seed, the address, the method, and
// the number of earlier calls with the same address and method.
func WithFaults(inner rpc.Plane, seed uint64, f CallFaults) *FaultyPlane {
	p := &FaultyPlane{inner: inner, seed: seed}
	p.mu.faults = f
	p.mu.calls = make(map[callTarget]uint64)
	return p
}

// Set replaces the faults of subsequent calls.
func (p *FaultyPlane) Set(f CallFaults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.faults = f
}

// Serve implements Plane, without faults.
func (p *FaultyPlane) Serve(ctx context.Context, addr string, h rpc.Handler, ready func(addr string)) error {
	return p.inner.Serve(ctx, addr, h, ready)
}

var errCut = errors.New("cut")

// Call implements Plane.
func (p *FaultyPlane) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	f, rng := p.drawFaults(callTarget{addr, method})
	refuse := rng.Float64() < f.Refuse
	left := -1 // frames until the cut; negative means never
	if rng.Float64() < f.Cut {
		left = rng.IntN(max(f.CutAfter, 0) + 1)
	}
	if err := sleepRandom(ctx, rng, f.Delay); err != nil {
		return err
	}
	if refuse {
		return fault.New(fault.Unavailable, "call %s: the connection to %q was refused (injected)", method, addr)
	}
	err := p.inner.Call(ctx, addr, method, body, func(frame []byte) error {
		if left == 0 {
			return errCut
		}
		left--
		if err := sleepRandom(ctx, rng, f.Delay); err != nil {
			return err
		}
		return recv(frame)
	})
	if errors.Is(err, errCut) || err == nil && left == 0 {
		return fault.New(fault.Unavailable, "call %s: the connection to %q broke (injected)", method, addr)
	}
	return err
}

// drawFaults returns the current faults and the random source for the next call to t.
func (p *FaultyPlane) drawFaults(t callTarget) (CallFaults, *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.mu.calls[t]
	p.mu.calls[t] = n + 1

	h := fnv.New64a()
	h.Write([]byte(t.addr + "\x00" + t.method + "\x00"))
	h.Write(binary.LittleEndian.AppendUint64(nil, n))
	return p.mu.faults, rand.New(rand.NewPCG(p.seed, h.Sum64()))
}

// sleepRandom waits for a random time below limit, or until ctx ends.
func sleepRandom(ctx context.Context, rng *rand.Rand, limit time.Duration) error {
	if limit <= 0 {
		return nil
	}
	t := time.NewTimer(time.Duration(rng.Int64N(int64(limit))))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
