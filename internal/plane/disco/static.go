package disco

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// maxAddrs bounds the addresses of a static registry; each address has a goroutine.
const maxAddrs = 4096

// StaticConfig configures a registry of fixed addresses.
type StaticConfig struct {
	// Addrs are request plane addresses. A process that is reachable at several of them is shown
	// with the first. A process which only registers needs none.
	Addrs []string
	// Ask asks the process at an address for its instance. The error Draining means that the
	// process is shutting down; any other error means that it did not answer.
	Ask func(ctx context.Context, addr string) (Instance, error)
	// Interval is the time between requests to an address that answers, and the upper bound of the
	// backoff for one that does not. 0 means 2 s.
	Interval time.Duration
	// Timeout bounds one request. 0 means 2 s.
	Timeout time.Duration
	// Log receives addresses which start or stop answering. Nil discards them.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *StaticConfig) EnsureDefaults() {
	c.Interval = cmp.Or(c.Interval, 2*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 2*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all problems of c.
func (c *StaticConfig) Validate() error {
	var errs []error
	if len(c.Addrs) > maxAddrs {
		errs = append(errs, fault.New(fault.Invalid, "static discovery: have %d addresses, at most %d are allowed", len(c.Addrs), maxAddrs))
	}
	if slices.Contains(c.Addrs, "") {
		errs = append(errs, fault.New(fault.Invalid, "static discovery: an address is empty"))
	}
	if c.Ask == nil {
		errs = append(errs, fault.New(fault.Invalid, "static discovery: nothing asks the addresses"))
	}
	if c.Interval < 0 || c.Timeout < 0 {
		errs = append(errs, fault.New(fault.Invalid, "static discovery: intervals must be positive"))
	}
	return errors.Join(errs...)
}

// StaticRegistry is discovery without a store: watchers know the addresses and ask each process for
// its instance. Registering has no effect except that it validates the instance, because there is
// no store.
//
// The last known instance of an address which stops answering stays, unconfirmed, until the address
// answers again; an address which never answered is not shown. A process which reports Draining is
// removed.
type StaticRegistry struct {
	cfg StaticConfig
	mu  struct {
		sync.Mutex
		asking  *staticProber // non-nil while there are watches
		watches int
	}
}

var _ Registry = (*StaticRegistry)(nil)

// NewStaticRegistry returns a registry of cfg.Addrs. It contacts the addresses only while it is
// watched.
func NewStaticRegistry(cfg StaticConfig) (*StaticRegistry, error) {
	cfg.EnsureDefaults()
	cfg.Addrs = slices.Clone(cfg.Addrs)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &StaticRegistry{cfg: cfg}, nil
}

// staticLease is a registration without effect.
type staticLease struct {
	in Instance
	mu struct {
		sync.Mutex
		released bool
	}
}

// Register implements Registry.
func (s *StaticRegistry) Register(ctx context.Context, in Instance) (Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in, err := validatedCopy(in)
	if err != nil {
		return nil, err
	}
	return &staticLease{in: in}, nil
}

// Update implements Lease.
func (l *staticLease) Update(ctx context.Context, in Instance) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkSameIdentity(l.in, in); err != nil {
		return err
	}
	if _, err := validatedCopy(in); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.released {
		return errLeaseReleased(in)
	}
	return nil
}

// Lost implements Lease. It is never closed.
func (l *staticLease) Lost() <-chan struct{} { return nil }

// Release implements Lease.
func (l *staticLease) Release(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.released = true
	return nil
}

// staticProber asks the addresses on behalf of all watches, so that all watches see a change at the
// same time: a router must not lag behind the frontend that it routes for. When the last watch
// ends, the prober stops and its goroutines are awaited.
type staticProber struct {
	cfg    *StaticConfig
	cancel context.CancelFunc
	probes sync.WaitGroup
	mu     struct {
		sync.Mutex
		slots   []staticAddress // in the order of the addresses
		watches []chan struct{} // each gets a token after a change
	}
}

// staticAddress is the state of one address.
type staticAddress struct {
	asked    bool // it answered, or failed to, at least once
	known    bool // it has returned its instance
	instance Instance
}

// Watch implements Registry. The first set arrives when every address has answered or failed to.
func (s *StaticRegistry) Watch(ctx context.Context, kind Kind, sink func([]Instance)) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	a := s.startWatch()
	defer s.stopWatch(a, wake)
	wake <- struct{}{} // results of earlier watches count
	a.addWaiter(wake)
	var last []Instance
	for first := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		set, complete := a.instancesOf(kind)
		if ctx.Err() != nil || !complete || !first && equalSets(set, last) {
			continue
		}
		first, last = false, cloneSet(set)
		sink(set)
	}
}

// startWatch returns the shared prober, and starts it for the first watch.
func (s *StaticRegistry) startWatch() *staticProber {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.watches++
	if s.mu.asking != nil {
		return s.mu.asking
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &staticProber{cfg: &s.cfg, cancel: cancel}
	a.mu.slots = make([]staticAddress, len(s.cfg.Addrs))
	for i := range s.cfg.Addrs {
		a.probes.Go(func() { a.probeAddress(ctx, i) })
	}
	s.mu.asking = a
	return a
}

// stopWatch ends a watch.
func (s *StaticRegistry) stopWatch(a *staticProber, wake chan struct{}) {
	a.removeWaiter(wake)
	s.mu.Lock()
	s.mu.watches--
	last := s.mu.watches == 0
	if last {
		s.mu.asking = nil
	}
	s.mu.Unlock()
	if last {
		a.cancel()
		a.probes.Wait()
	}
}

func (a *staticProber) addWaiter(wake chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.watches = append(a.mu.watches, wake)
}

func (a *staticProber) removeWaiter(wake chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.watches = slices.DeleteFunc(a.mu.watches, func(o chan struct{}) bool { return o == wake })
}

// probeAddress asks one address repeatedly until ctx ends.
func (a *staticProber) probeAddress(ctx context.Context, i int) {
	wait := backoff.Backoff{Min: min(100*time.Millisecond, a.cfg.Interval), Max: a.cfg.Interval}
	failed := false
	for ctx.Err() == nil {
		in, err := a.askAddress(ctx, a.cfg.Addrs[i])
		if ctx.Err() != nil {
			return
		}
		a.recordAnswer(i, in, err)
		if err != nil {
			if !failed {
				a.cfg.Log.Warn("an address of static discovery does not identify itself", "addr", a.cfg.Addrs[i], "error", err)
			}
			failed = true
			_ = wait.Wait(ctx) // the loop condition detects that ctx has ended
			continue
		}
		if failed {
			a.cfg.Log.Info("an address of static discovery answers", "addr", a.cfg.Addrs[i], "kind", in.Kind, "id", uint64(in.ID))
		}
		failed = false
		wait.Reset()
		_ = backoff.SleepContext(ctx, a.cfg.Interval-rand.N(a.cfg.Interval/10+1)) // spread the requests
	}
}

// askAddress asks once, and validates the answer as a store would.
func (a *staticProber) askAddress(ctx context.Context, addr string) (Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	in, err := a.cfg.Ask(ctx, addr)
	if err != nil {
		return Instance{}, err
	}
	in.Addr = addr
	if in, err = validatedCopy(in); err != nil {
		return Instance{}, fmt.Errorf("ask %s: %w", addr, err)
	}
	return in, nil
}

// recordAnswer stores the answer of an address.
func (a *staticProber) recordAnswer(i int, in Instance, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slot := &a.mu.slots[i]
	slot.asked = true
	switch {
	case err == nil:
		slot.known, slot.instance = true, in
	case fault.CodeOf(err) == fault.Draining:
		slot.known = false
	default:
		slot.instance.Unconfirmed = true
	}
	for _, wake := range a.mu.watches {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// instancesOf returns the instances of a kind, ordered by ID, and whether every address has been
// asked. For an instance at several addresses the newest incarnation wins, then a confirmed one,
// then the first address.
func (a *staticProber) instancesOf(kind Kind) (set []Instance, complete bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	complete = true
	for _, slot := range a.mu.slots {
		complete = complete && slot.asked
		if slot.known && slot.instance.Kind == kind {
			set = append(set, slot.instance)
		}
	}
	slices.SortStableFunc(set, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), -cmp.Compare(a.Epoch, b.Epoch), compareBool(a.Unconfirmed, b.Unconfirmed))
	})
	set = slices.CompactFunc(set, func(a, b Instance) bool { return a.ID == b.ID })
	return cloneSet(set), complete
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
