package servetest

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"sync"

	"penstock/internal/plane/disco"
)

// Registry is a discovery store whose contents and failures a test controls.
type Registry struct {
	mu struct {
		sync.Mutex
		ins     []disco.Instance
		fail    []error
		changed chan struct{} // closed at the next change
	}
}

var _ disco.Registry = (*Registry)(nil)

// NewRegistry returns an empty store.
func NewRegistry() *Registry {
	r := &Registry{}
	r.mu.changed = make(chan struct{})
	return r
}

// FailRegister makes the next calls of Register fail, one with each error.
func (r *Registry) FailRegister(errs ...error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.fail = append(r.mu.fail, errs...)
}

// Set replaces or adds an instance.
func (r *Registry) Set(in disco.Instance) {
	r.editInstances(func(ins []disco.Instance) []disco.Instance {
		return append(withoutInstance(ins, in), in)
	})
}

// Delete removes an instance, as the end of its lease would.
func (r *Registry) Delete(in disco.Instance) {
	r.editInstances(func(ins []disco.Instance) []disco.Instance { return withoutInstance(ins, in) })
}

// Instances returns the registered instances, by id.
func (r *Registry) Instances() []disco.Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ins
}

// Changed returns a channel that is closed at the next change of the contents.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.changed
}

func withoutInstance(ins []disco.Instance, in disco.Instance) []disco.Instance {
	return slices.DeleteFunc(slices.Clone(ins), func(o disco.Instance) bool { return o.Kind == in.Kind && o.ID == in.ID })
}

// editInstances replaces the set by f's result, which must be a new slice.
func (r *Registry) editInstances(f func([]disco.Instance) []disco.Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.ins = f(r.mu.ins)
	slices.SortFunc(r.mu.ins, func(a, b disco.Instance) int { return cmp.Compare(a.ID, b.ID) })
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

// Register implements disco.Registry.
func (r *Registry) Register(ctx context.Context, in disco.Instance) (disco.Lease, error) {
	if err := r.nextFailure(); err != nil {
		return nil, err
	}
	r.Set(in)
	return &registryLease{r: r, in: in}, ctx.Err()
}

func (r *Registry) nextFailure() (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.fail) > 0 {
		err, r.mu.fail = r.mu.fail[0], r.mu.fail[1:]
	}
	return err
}

// Watch implements disco.Registry.
func (r *Registry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	var last []disco.Instance
	for first := true; ; first = false {
		r.mu.Lock()
		ins, changed := r.mu.ins, r.mu.changed
		r.mu.Unlock()
		set := slices.DeleteFunc(slices.Clone(ins), func(in disco.Instance) bool { return in.Kind != kind })
		if first || !reflect.DeepEqual(set, last) {
			last = slices.Clone(set)
			sink(set)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

type registryLease struct {
	r  *Registry
	in disco.Instance
}

func (l *registryLease) Update(_ context.Context, in disco.Instance) error {
	l.r.Set(in)
	return nil
}

func (l *registryLease) Lost() <-chan struct{} { return nil }

func (l *registryLease) Release(context.Context) error {
	l.r.Delete(l.in)
	return nil
}
