package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
)

// storage is a store of events that is unreachable at times, and can be replaced by an empty one, like
// a server that lost its disk.
type storage struct {
	mu struct {
		sync.Mutex
		bus     *bus.MemBus
		away    bool
		changed chan struct{} // closed at the next change
	}
}

func newStorage() *storage {
	s := &storage{}
	s.mu.bus, s.mu.changed = bus.NewMemBus(), make(chan struct{})
	return s
}

// set makes the store unreachable or reachable again, with its contents.
func (s *storage) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.away = away
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// replace empties the store; its numbers restart.
func (s *storage) replace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.bus = bus.NewMemBus()
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// here returns the store, nil while it is unreachable, and a channel which is closed when that changes.
func (s *storage) here() (*bus.MemBus, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.away {
		return nil, s.mu.changed
	}
	return s.mu.bus, s.mu.changed
}

var errAway = fault.New(fault.Unavailable, "the store is away")

// Publish implements bus.Bus.
func (s *storage) Publish(ctx context.Context, t bus.Topic, key string, data []byte) error {
	b, _ := s.here()
	if b == nil {
		return errAway
	}
	return b.Publish(ctx, t, key, data)
}

// DescribeTopic implements bus.Bus.
func (s *storage) DescribeTopic(ctx context.Context, t bus.Topic) (bus.TopicState, error) {
	b, _ := s.here()
	if b == nil {
		return bus.TopicState{}, errAway
	}
	return b.DescribeTopic(ctx, t)
}

// Purge implements bus.Bus.
func (s *storage) Purge(ctx context.Context, t bus.Topic, below uint64) error {
	b, _ := s.here()
	if b == nil {
		return errAway
	}
	return b.Purge(ctx, t, below)
}

// Subscribe implements bus.Bus: it continues at its position when the store is reachable again, and at
// the start of a replaced one.
func (s *storage) Subscribe(ctx context.Context, t bus.Topic, from uint64, sink func(bus.Message) error, ready func()) error {
	var last *bus.MemBus
	next := from
	for ctx.Err() == nil {
		b, changed := s.here()
		if b == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if last != nil && last != b {
			next = 1
		}
		last = b
		err := whileUnchanged(ctx, changed, func(ctx context.Context) error {
			return b.Subscribe(ctx, t, next, func(m bus.Message) error {
				if ctx.Err() != nil {
					return nil
				}
				next = m.Seq + 1
				return sink(m)
			}, func() {
				if ready != nil {
					ready()
					ready = nil
				}
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// whileUnchanged calls f with a context that also ends with changed.
func whileUnchanged(ctx context.Context, changed <-chan struct{}, f func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-changed:
			stop()
		case <-ctx.Done():
		}
	})
	defer watch.Wait()
	defer stop()
	return f(ctx)
}

var errDead = errors.New("this process is dead")

// process is the planes' view of a process that may be killed: afterwards its actions have no effect.
type process struct {
	dead atomic.Bool
	// steps is the number of steps of snapshots that it may still do; 0 is unbounded.
	steps  atomic.Int64
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of its run, once done
	tap    func(topic bus.Topic, data []byte)
}

// start runs a process.
func (p *process) start(ctx context.Context, run func(context.Context) error) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		p.err = run(ctx)
	}()
}

// kill ends the process without a shutdown.
func (p *process) kill() {
	p.dead.Store(true)
	p.cancel()
}

// step is a point where a process may be killed while it writes a snapshot.
func (p *process) step() error {
	if p.steps.Load() > 0 && p.steps.Add(-1) == 0 {
		p.kill()
	}
	if p.dead.Load() {
		return errDead
	}
	return nil
}

// ownBus is the bus of one process.
type ownBus struct {
	bus.Bus
	p *process
}

func (b ownBus) Publish(ctx context.Context, t bus.Topic, key string, data []byte) error {
	if b.p.dead.Load() {
		return errDead
	}
	if b.p.tap != nil {
		b.p.tap(t, data)
	}
	return b.Bus.Publish(ctx, t, key, data)
}

func (b ownBus) Subscribe(ctx context.Context, t bus.Topic, from uint64, sink func(bus.Message) error, ready func()) error {
	return b.Bus.Subscribe(ctx, t, from, func(m bus.Message) error {
		if b.p.dead.Load() {
			return errDead
		}
		return sink(m)
	}, ready)
}

func (b ownBus) Purge(ctx context.Context, t bus.Topic, below uint64) error {
	if err := b.p.step(); err != nil {
		return err
	}
	err := b.Bus.Purge(ctx, t, below)
	return errors.Join(err, b.p.step())
}

// ownArchive is the archive of one process. The lock of a killed process ends when its lease does.
type ownArchive struct {
	bus.Archive
	p *process
}

func (a ownArchive) Put(ctx context.Context, name string, data []byte) error {
	if err := a.p.step(); err != nil {
		return err
	}
	err := a.Archive.Put(ctx, name, data)
	return errors.Join(err, a.p.step())
}

func (a ownArchive) Delete(ctx context.Context, name string) error {
	if err := a.p.step(); err != nil {
		return err
	}
	return a.Archive.Delete(ctx, name)
}

func (a ownArchive) Lock(ctx context.Context, name string, held func(context.Context, uint64) error) error {
	return a.Archive.Lock(ctx, name, func(ctx context.Context, token uint64) error {
		if err := a.p.step(); err == nil {
			err = held(ctx, token)
			if !a.p.dead.Load() {
				return err
			}
		}
		<-time.After(bus.LeaseTTL)
		return errDead
	})
}

// ownRegistry is the registry of one process: a killed process stays registered.
type ownRegistry struct {
	disco.Registry
	p *process
}

func (r ownRegistry) Register(ctx context.Context, in disco.Instance) (disco.Lease, error) {
	if r.p.dead.Load() {
		return nil, errDead
	}
	l, err := r.Registry.Register(ctx, in)
	return ownLease{l, r.p}, err
}

func (r ownRegistry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	return r.Registry.Watch(ctx, kind, func(ins []disco.Instance) {
		if !r.p.dead.Load() {
			sink(ins)
		}
	})
}

type ownLease struct {
	disco.Lease
	p *process
}

// Lost is never closed for a killed process.
func (l ownLease) Lost() <-chan struct{} { return nil }

func (l ownLease) Release(ctx context.Context) error {
	if l.p.dead.Load() {
		return errDead
	}
	return l.Lease.Release(ctx)
}
