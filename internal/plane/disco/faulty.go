package disco

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
)

// RegistryFaults configures how a registry misbehaves. The zero value is a registry without faults.
type RegistryFaults struct {
	// Fail is the probability, from 0 to 1, that Register or Update returns Unavailable and has no
	// effect.
	Fail float64
	// Delay is the upper bound of a random delay of each delivery of a set.
	Delay time.Duration
}

// FaultyRegistry wraps another registry, fails some of its calls, and can simulate an outage of the
// store.
type FaultyRegistry struct {
	inner Registry
	seed  uint64
	mu    struct {
		sync.Mutex
		faults  RegistryFaults
		down    bool
		calls   map[instanceKey]uint64
		watches []*faultyWatch
		opened  uint64
	}
}

var _ Registry = (*FaultyRegistry)(nil)

// WithFaults wraps inner. Whether a call fails depends only on the seed, the instance, and the
// number of earlier calls for it.
func WithFaults(inner Registry, seed uint64, f RegistryFaults) *FaultyRegistry {
	r := &FaultyRegistry{inner: inner, seed: seed}
	r.mu.faults = f
	r.mu.calls = make(map[instanceKey]uint64)
	return r
}

// Set replaces the faults of subsequent calls.
func (r *FaultyRegistry) Set(f RegistryFaults) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.faults = f
}

// Down makes the store unreachable: Register, Update and Release return Unavailable, and watchers
// keep their last set, marked unconfirmed.
func (r *FaultyRegistry) Down() { r.setDown(true) }

// Up makes the store reachable again: watchers get the current set.
func (r *FaultyRegistry) Up() { r.setDown(false) }

func (r *FaultyRegistry) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.down = down
	for _, w := range r.mu.watches {
		w.wakeWatch()
	}
}

// admitCall decides at random whether one call for n may pass.
func (r *FaultyRegistry) admitCall(op string, n instanceKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := r.mu.calls[n]
	r.mu.calls[n] = call + 1
	rng := randFor(r.seed, string(n.kind), uint64(n.id), call)
	if r.mu.down || rng.Float64() < r.mu.faults.Fail {
		return fault.New(fault.Unavailable, "%s %s %d: the store is out of reach (injected)", op, n.kind, n.id)
	}
	return nil
}

// Register implements Registry.
func (r *FaultyRegistry) Register(ctx context.Context, in Instance) (Lease, error) {
	n := instanceKey{in.Kind, in.ID}
	if err := r.admitCall("register", n); err != nil {
		return nil, err
	}
	l, err := r.inner.Register(ctx, in)
	if err != nil {
		return nil, err
	}
	return &faultyLease{r, n, l}, nil
}

type faultyLease struct {
	registry *FaultyRegistry
	name     instanceKey
	inner    Lease
}

// Update implements Lease.
func (l *faultyLease) Update(ctx context.Context, in Instance) error {
	if err := l.registry.admitCall("update", l.name); err != nil {
		return err
	}
	return l.inner.Update(ctx, in)
}

// Lost implements Lease.
func (l *faultyLease) Lost() <-chan struct{} { return l.inner.Lost() }

// Release implements Lease. It fails only while the store is unreachable; the registration then
// stays, and a later call removes it.
func (l *faultyLease) Release(ctx context.Context) error {
	if l.registry.isDown() {
		return fault.New(fault.Unavailable, "release %s %d: the store is out of reach (injected)", l.name.kind, l.name.id)
	}
	return l.inner.Release(ctx)
}

func (r *FaultyRegistry) isDown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.down
}

// faultyWatch is one Watch: the newest set of the inner registry, and a channel which gets a token
// when that set or the store's state changes.
type faultyWatch struct {
	wake chan struct{}
	mu   struct {
		sync.Mutex
		set     []Instance
		version uint64 // of set; 0 before the first
	}
}

func (w *faultyWatch) wakeWatch() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *faultyWatch) putSet(set []Instance) {
	w.mu.Lock()
	w.mu.set = set
	w.mu.version++
	w.mu.Unlock()
	w.wakeWatch()
}

func (w *faultyWatch) getSet() ([]Instance, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.set, w.mu.version
}

// Watch implements Registry.
func (r *FaultyRegistry) Watch(ctx context.Context, kind Kind, sink func([]Instance)) error {
	w, rng := r.openWatch(kind)
	defer r.closeWatch(w)
	ictx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.inner.Watch(ictx, kind, w.putSet) }()

	var shown []Instance
	var version uint64 // of shown; 0 also after shown was marked unconfirmed
	for {
		select {
		case err := <-ended:
			return err // nil when ctx ended
		case <-w.wake:
		}
		r.sleepRandom(ictx, rng)
		if ctx.Err() != nil {
			continue // wait for the inner watch
		}
		set, v := w.getSet()
		switch down := r.isDown(); {
		case down && version != 0:
			for i := range shown {
				shown[i].Unconfirmed = true
			}
			version = 0
			sink(cloneSet(shown))
		case !down && v != version:
			shown, version = cloneSet(set), v
			sink(cloneSet(set))
		}
	}
}

// openWatch starts a watch. Its random source depends on the order of watches.
func (r *FaultyRegistry) openWatch(kind Kind) (*faultyWatch, *rand.Rand) {
	w := &faultyWatch{wake: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.watches = append(r.mu.watches, w)
	r.mu.opened++
	return w, randFor(r.seed, "watch "+string(kind), r.mu.opened, 0)
}

func (r *FaultyRegistry) closeWatch(w *faultyWatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.watches = slices.DeleteFunc(r.mu.watches, func(o *faultyWatch) bool { return o == w })
}

// sleepRandom waits for a random time below the current delay, or until ctx ends.
func (r *FaultyRegistry) sleepRandom(ctx context.Context, rng *rand.Rand) {
	r.mu.Lock()
	limit := r.mu.faults.Delay
	r.mu.Unlock()
	if limit <= 0 {
		return
	}
	t := time.NewTimer(time.Duration(rng.Int64N(int64(limit))))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// randFor returns the random source of call n for a name and id.
func randFor(seed uint64, what string, id, n uint64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(what + "\x00"))
	h.Write(binary.LittleEndian.AppendUint64(nil, id))
	h.Write(binary.LittleEndian.AppendUint64(nil, n))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}
