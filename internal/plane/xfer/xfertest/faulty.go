package xfertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/xfer"
)

// WriterFaults configures how writers misbehave. Probabilities are from 0 to 1, and are those of one
// transfer. The zero value is a plane without faults.
type WriterFaults struct {
	// Cut is the probability that the connection breaks before a random byte.
	Cut float64
	// Lose is the probability that the writer vanishes without a word before its note: its Commit
	// returns Unavailable, and the owner hears nothing until the lease is over.
	Lose float64
	// Twice is the probability that the descriptor is used a second time, with other bytes: at once,
	// or after the first use.
	Twice float64
	// Pause is the probability that the writer stops before a random byte until Resume returns, and
	// goes on then.
	Pause float64
	// Resume blocks while a writer is paused. Nil means that pauses end at once.
	Resume func(d xfer.Descriptor)
	// Late is the upper bound of a random delay before each Write and Commit.
	Late time.Duration
}

// FaultyPlane wraps another plane, and injects faults into its writers.
type FaultyPlane struct {
	xfer.Plane
	seed   uint64
	second sync.WaitGroup // writers which use a descriptor a second time
	mu     struct {
		sync.Mutex
		faults WriterFaults
		opened uint64
	}
}

var _ xfer.Plane = (*FaultyPlane)(nil)

// WithFaults wraps inner. The faults of a transfer depend only on the seed and on how many were
// opened before it.
func WithFaults(inner xfer.Plane, seed uint64, f WriterFaults) *FaultyPlane {
	p := &FaultyPlane{Plane: inner, seed: seed}
	p.mu.faults = f
	return p
}

// Wait waits for writers which use a descriptor a second time.
func (p *FaultyPlane) Wait() { p.second.Wait() }

// Open implements Plane.
func (p *FaultyPlane) Open(ctx context.Context, d xfer.Descriptor) (xfer.TransferWriter, error) {
	p.mu.Lock()
	f := p.mu.faults
	p.mu.opened++
	rng := rand.New(rand.NewPCG(p.seed, p.mu.opened))
	p.mu.Unlock()
	w := &faultyWriter{plane: p, faults: f, rng: rng, desc: d, ctx: ctx, cutAt: -1, pauseAt: -1}
	if rng.Float64() < f.Cut {
		w.cutAt = rng.Int64N(d.Size)
	}
	w.lose = rng.Float64() < f.Lose
	twice, atOnce := rng.Float64() < f.Twice, rng.Float64() < 0.5
	if rng.Float64() < f.Pause {
		w.pauseAt = rng.Int64N(d.Size)
	}
	if twice && atOnce {
		p.useAgain(ctx, d)
	}
	w.again = twice && !atOnce
	inner, cancel := context.WithCancel(ctx)
	w.cut = cancel
	var err error
	if w.TransferWriter, err = p.Plane.Open(inner, d); err != nil {
		cancel()
		return nil, err
	}
	return w, nil
}

// useAgain uses the descriptor with bytes of 0xEE, in a goroutine.
func (p *FaultyPlane) useAgain(ctx context.Context, d xfer.Descriptor) {
	p.second.Go(func() {
		other := make([]byte, d.Size)
		for i := range other {
			other[i] = 0xEE
		}
		// Either use may win; the other one gets an error, which nothing depends on.
		_ = xfer.Write(ctx, p.Plane, d, []byte("again"), other)
	})
}

// faultyWriter is a writer with the faults of one transfer.
type faultyWriter struct {
	xfer.TransferWriter
	plane          *FaultyPlane
	faults         WriterFaults
	rng            *rand.Rand
	desc           xfer.Descriptor
	ctx            context.Context
	cut            func() // breaks the connection
	at             int64  // bytes written
	cutAt, pauseAt int64  // -1 for never
	lose, again    bool
}

// Write implements Writer.
func (w *faultyWriter) Write(p []byte) error {
	w.delay()
	for len(p) > 0 {
		n := len(p)
		for _, stop := range []int64{w.cutAt, w.pauseAt} {
			if d := stop - w.at; d > 0 && d < int64(n) {
				n = int(d)
			}
		}
		switch w.at {
		case w.cutAt:
			w.cut()
			err := fault.New(fault.Unavailable, "write: the connection broke (injected)")
			w.TransferWriter.Abort(err)
			return err
		case w.pauseAt:
			if w.faults.Resume != nil {
				w.faults.Resume(w.desc)
			}
		}
		if err := w.TransferWriter.Write(p[:n]); err != nil {
			w.cut()
			return err
		}
		w.at += int64(n)
		p = p[n:]
	}
	return nil
}

// Commit implements Writer.
func (w *faultyWriter) Commit(note []byte) error {
	w.delay()
	if w.lose {
		// The owner is not told: the connection stays until the context of Open ends.
		context.AfterFunc(w.ctx, func() { w.Abort(errors.New("lost (injected)")) })
		return fault.New(fault.Unavailable, "commit: no answer (injected)")
	}
	defer w.cut()
	err := w.TransferWriter.Commit(note)
	if w.again {
		w.plane.useAgain(w.ctx, w.desc)
	}
	return err
}

// Abort implements Writer.
func (w *faultyWriter) Abort(reason error) {
	w.TransferWriter.Abort(reason)
	w.cut()
}

func (w *faultyWriter) delay() {
	if w.faults.Late > 0 {
		t := time.NewTimer(time.Duration(w.rng.Int64N(int64(w.faults.Late))))
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.ctx.Done():
		}
	}
}
