package xfer

import (
	"context"
	"errors"
	"sync"

	"penstock/core/fault"
)

// Fastest joins the planes of a process: a transfer can be fulfilled by any of them, and a writer
// uses the first transport of the descriptor by which it reaches the owner: memory, shared memory,
// UCX, TCP.
type Fastest struct {
	*registry
	planes map[Transport]Plane
	order  []Plane
}

var (
	_ Plane       = (*Fastest)(nil)
	_ wholeOpener = (*Fastest)(nil)
)

// NewFastest joins the planes which are not nil. They must be new, and must not be used beside it.
func NewFastest(mem *MemPlane, shm *ShmPlane, ucx *UCXPlane, tcp *TCPPlane) (*Fastest, error) {
	f := &Fastest{planes: make(map[Transport]Plane)}
	join := func(t Transport, p Plane, r **registry) {
		if f.registry == nil {
			f.registry = *r
		}
		*r = f.registry // one set of transfers, bounded by the first plane's configuration
		f.planes[t] = p
		f.order = append(f.order, p)
	}
	if mem != nil {
		join(Mem, mem, &mem.registry)
	}
	if shm != nil {
		join(Shm, shm, &shm.registry)
	}
	if ucx != nil {
		join(UCX, ucx, &ucx.registry)
	}
	if tcp != nil {
		join(TCP, tcp, &tcp.registry)
	}
	if f.registry == nil {
		return nil, fault.New(fault.Invalid, "xfer: no transport is given")
	}
	return f, nil
}

// Run implements Plane. It ends when one plane fails.
func (f *Fastest) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all, waiting sync.WaitGroup
	waiting.Add(len(f.order))
	errs := make([]error, len(f.order))
	for i, p := range f.order {
		var once sync.Once
		arrived := func() { once.Do(waiting.Done) }
		all.Go(func() {
			if errs[i] = p.Run(ctx, arrived); errs[i] != nil {
				cancel()
			}
			arrived() // a plane which failed is never ready
		})
	}
	waiting.Wait()
	if ready != nil && ctx.Err() == nil {
		ready()
	}
	all.Wait()
	return errors.Join(errs...)
}

// Open implements Plane.
func (f *Fastest) Open(ctx context.Context, d Descriptor) (TransferWriter, error) {
	return openFastest(ctx, f, d, Plane.Open)
}

// openWhole implements wholeOpener. Within a process there is none.
func (f *Fastest) openWhole(ctx context.Context, d Descriptor) (*sharedLane, error) {
	return openFastest(ctx, f, d, func(p Plane, ctx context.Context, d Descriptor) (*sharedLane, error) {
		if o, ok := p.(wholeOpener); ok {
			return o.openWhole(ctx, d)
		}
		if addr, _ := d.endpoint(Mem); addr == p.(*MemPlane).addr {
			return nil, nil
		}
		return nil, errOtherMemory
	})
}

// openFastest calls open with the planes for the transports of d in turn, until one reaches the owner.
func openFastest[W any](ctx context.Context, f *Fastest, d Descriptor, open func(Plane, context.Context, Descriptor) (W, error)) (W, error) {
	var none W
	var errs []error
	for _, e := range d.Endpoints {
		p := f.planes[e.Transport]
		if p == nil {
			continue
		}
		w, err := open(p, ctx, d)
		if err == nil || fault.CodeOf(err) != fault.Unavailable || ctx.Err() != nil {
			return w, err
		}
		errs = append(errs, err)
	}
	if errs == nil {
		return none, errNoWay(d)
	}
	return none, fault.New(fault.Unavailable, "open transfer: no way to the owner: %w", errors.Join(errs...))
}

// Close closes the connections to owners; see TCPPlane.Close.
func (f *Fastest) Close() error {
	var errs []error
	for _, p := range f.order {
		if c, ok := p.(interface{ Close() error }); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
