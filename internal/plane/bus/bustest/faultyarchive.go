package bustest

import (
	"context"
	"math/rand/v2"
	"sync"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
)

// ArchiveFaults configures how an archive misbehaves. Probabilities are from 0 to 1. The zero value
// is an archive without faults.
type ArchiveFaults struct {
	// Fail is the probability that a call returns Unavailable. Half of the failed writes take
	// effect nevertheless.
	Fail float64
	// Corrupt is the probability that one byte of Get's result is changed, Truncate that its end is
	// missing.
	Corrupt, Truncate float64
	// Lose is the probability that a lock is lost as soon as it is held.
	Lose float64
}

// FaultyArchive wraps another archive and injects faults. It deliberately violates the contract of
// Archive, for tests of the code that must tolerate that.
type FaultyArchive struct {
	inner bus.Archive
	mu    struct {
		sync.Mutex
		faults ArchiveFaults
		rng    *rand.Rand
	}
}

var _ bus.Archive = (*FaultyArchive)(nil)

// NewFaultyArchive wraps inner. The fate of a call depends only on the seed and the calls before
// it.
func NewFaultyArchive(inner bus.Archive, seed uint64, f ArchiveFaults) *FaultyArchive {
	a := &FaultyArchive{inner: inner}
	a.mu.faults, a.mu.rng = f, rand.New(rand.NewPCG(seed, 0))
	return a
}

// Set replaces the faults of subsequent calls.
func (a *FaultyArchive) Set(f ArchiveFaults) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.faults = f
}

// callFate is the random choice for one call.
type callFate struct {
	fail, done, corrupt, truncate, lose bool
	at                                  float64 // relative position of the damage
}

func (a *FaultyArchive) drawFate() callFate {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, rng := a.mu.faults, a.mu.rng
	return callFate{
		fail: rng.Float64() < f.Fail, done: rng.Float64() < 0.5, corrupt: rng.Float64() < f.Corrupt,
		truncate: rng.Float64() < f.Truncate, lose: rng.Float64() < f.Lose, at: rng.Float64(),
	}
}

// runChange runs a call which changes the archive.
func (a *FaultyArchive) runChange(op, name string, f func() error) error {
	d := a.drawFate()
	if d.fail && !d.done {
		return fault.New(fault.Unavailable, "%s %s: whether it was done is not known (injected)", op, name)
	}
	err := f()
	if err == nil && d.fail {
		return fault.New(fault.Unavailable, "%s %s: whether it was done is not known (injected)", op, name)
	}
	return err
}

// Put implements Archive.
func (a *FaultyArchive) Put(ctx context.Context, name string, data []byte) error {
	return a.runChange("put", name, func() error { return a.inner.Put(ctx, name, data) })
}

// Delete implements Archive.
func (a *FaultyArchive) Delete(ctx context.Context, name string) error {
	return a.runChange("delete", name, func() error { return a.inner.Delete(ctx, name) })
}

// Get implements Archive.
func (a *FaultyArchive) Get(ctx context.Context, name string) ([]byte, error) {
	d := a.drawFate()
	if d.fail {
		return nil, fault.New(fault.Unavailable, "get %s: no answer (injected)", name)
	}
	data, err := a.inner.Get(ctx, name)
	if err != nil || len(data) == 0 {
		return data, err
	}
	at := min(int(d.at*float64(len(data))), len(data)-1)
	if d.corrupt {
		data[at] ^= 1
	}
	if d.truncate {
		data = data[:at]
	}
	return data, nil
}

// List implements Archive.
func (a *FaultyArchive) List(ctx context.Context, prefix string) ([]bus.ArchiveObject, error) {
	if a.drawFate().fail {
		return nil, fault.New(fault.Unavailable, "list %s: no answer (injected)", prefix)
	}
	return a.inner.List(ctx, prefix)
}

// Lock implements Archive.
func (a *FaultyArchive) Lock(ctx context.Context, name string, held func(context.Context, uint64) error) error {
	d := a.drawFate()
	if d.fail {
		return fault.New(fault.Unavailable, "lock %s: no answer (injected)", name)
	}
	return a.inner.Lock(ctx, name, func(ctx context.Context, token uint64) error {
		if !d.lose {
			return held(ctx, token)
		}
		lost := fault.New(fault.Conflict, "lock %s: it was lost while it was held (injected)", name)
		ctx, lose := context.WithCancelCause(ctx)
		lose(lost)
		return held(ctx, token)
	})
}
