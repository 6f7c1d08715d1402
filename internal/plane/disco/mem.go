package disco

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"penstock/core/kv"
)

// MemRegistry is the discovery plane within one process. Its instances are never unconfirmed, and
// it has no goroutines.
type MemRegistry struct {
	mu struct {
		sync.Mutex
		held     map[instanceKey]*memLease
		watchers []*memWatcher
	}
}

var _ Registry = (*MemRegistry)(nil)

// NewMemRegistry returns a registry without instances.
func NewMemRegistry() *MemRegistry {
	m := &MemRegistry{}
	m.mu.held = make(map[instanceKey]*memLease)
	return m
}

// instanceKey identifies an instance.
type instanceKey struct {
	kind Kind
	id   kv.WorkerID
}

// memLease is one registration. It is current while MemRegistry.mu.held refers to it.
type memLease struct {
	mem *MemRegistry
	in  Instance // guarded by MemRegistry.mu
	// lost is closed when a newer incarnation replaces this one.
	lost chan struct{}
}

// memWatcher is one Watch. Its channel gets a token after each change.
type memWatcher struct {
	kind Kind
	wake chan struct{}
}

// Register implements Registry.
func (m *MemRegistry) Register(ctx context.Context, in Instance) (Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in, err := validatedCopy(in)
	if err != nil {
		return nil, err
	}
	l := &memLease{mem: m, in: in, lost: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := instanceKey{in.Kind, in.ID}
	if old := m.mu.held[n]; old != nil {
		if old.in.Epoch >= in.Epoch {
			return nil, errInstanceHeld(in, old.in.Epoch)
		}
		close(old.lost)
	}
	m.mu.held[n] = l
	m.wakeWatchersLocked(in.Kind)
	return l, nil
}

// validatedCopy returns a copy of in, or an error if no store would accept it.
func validatedCopy(in Instance) (Instance, error) {
	in.Unconfirmed = false
	in.Meta = bytes.Clone(in.Meta)
	_, err := encodeRecord(instanceRecord{Instance: in, Holder: "0123456789abcdef0123456789abcdef"})
	return in, err
}

// Update implements Lease.
func (l *memLease) Update(ctx context.Context, in Instance) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	in, err := validatedCopy(in)
	if err != nil {
		return err
	}
	l.mem.mu.Lock()
	defer l.mem.mu.Unlock()
	if err := checkSameIdentity(l.in, in); err != nil {
		return err
	}
	if l.mem.mu.held[instanceKey{in.Kind, in.ID}] != l {
		return errLeaseReleased(in)
	}
	l.in = in
	l.mem.wakeWatchersLocked(in.Kind)
	return nil
}

// Lost implements Lease.
func (l *memLease) Lost() <-chan struct{} { return l.lost }

// Release implements Lease.
func (l *memLease) Release(context.Context) error {
	l.mem.mu.Lock()
	defer l.mem.mu.Unlock()
	n := instanceKey{l.in.Kind, l.in.ID}
	if l.mem.mu.held[n] == l {
		delete(l.mem.mu.held, n)
		l.mem.wakeWatchersLocked(n.kind)
	}
	return nil
}

// wakeWatchersLocked wakes the watchers of kind.
func (m *MemRegistry) wakeWatchersLocked(kind Kind) {
	for _, w := range m.mu.watchers {
		if w.kind == kind {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

// Watch implements Registry. Changes during a call of sink are combined in the next call.
func (m *MemRegistry) Watch(ctx context.Context, kind Kind, sink func([]Instance)) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	w := &memWatcher{kind: kind, wake: make(chan struct{}, 1)}
	w.wake <- struct{}{} // the initial set; sent before others can fill the channel
	m.addWatcher(w)
	defer m.removeWatcher(w)
	var last []Instance
	for first := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		if ctx.Err() != nil {
			return nil
		}
		set := m.instancesOf(kind)
		if first || !equalSets(set, last) {
			first = false
			last = cloneSet(set)
			sink(set)
		}
	}
}

func (m *MemRegistry) addWatcher(w *memWatcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.watchers = append(m.mu.watchers, w)
}

func (m *MemRegistry) removeWatcher(w *memWatcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.watchers = slices.DeleteFunc(m.mu.watchers, func(o *memWatcher) bool { return o == w })
}

// instancesOf returns a copy of the instances of kind, ordered by ID.
func (m *MemRegistry) instancesOf(kind Kind) []Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	var set []Instance
	for n, l := range m.mu.held {
		if n.kind == kind {
			in := l.in
			in.Meta = bytes.Clone(in.Meta)
			set = append(set, in)
		}
	}
	slices.SortFunc(set, func(a, b Instance) int { return cmp.Compare(a.ID, b.ID) })
	return set
}

// cloneSet returns a deep copy of set.
func cloneSet(set []Instance) []Instance {
	set = slices.Clone(set)
	for i := range set {
		set[i].Meta = bytes.Clone(set[i].Meta)
	}
	return set
}

func equalSets(a, b []Instance) bool { return slices.EqualFunc(a, b, equalInstances) }

func equalInstances(a, b Instance) bool {
	return a.Kind == b.Kind && a.ID == b.ID && a.Epoch == b.Epoch &&
		a.Namespace == b.Namespace && a.Component == b.Component && a.Endpoint == b.Endpoint &&
		a.Addr == b.Addr && a.Host == b.Host && a.PID == b.PID && a.Name == b.Name &&
		bytes.Equal(a.Meta, b.Meta) && a.Unconfirmed == b.Unconfirmed
}
