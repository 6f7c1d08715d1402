package fetch

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/bounded"
	"penstock/internal/media/probe"
)

// urlKey identifies a URL in caches, because URLs are long. Equal keys mean equal URLs.
type urlKey [sha256.Size]byte

func urlKeyOf(url string) urlKey { return sha256.Sum256([]byte(url)) }

// flightGroup runs a function once for all concurrent callers with the same key. A caller whose
// context ends does not disturb the others; when the last one has left, the run is canceled.
type flightGroup[V any] struct {
	max     int
	share   int // per host or client
	timeout time.Duration
	drop    func(V) // called with a result when all waiters have taken it or left
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		calls  map[urlKey]*flightCall[V]
		cancel map[*flightCall[V]]context.CancelFunc // of all running calls, including those without waiters
		// number of running calls by host and by client
		hosts, clients map[string]int
		closed         bool
	}
}

// flightCall is one run.
type flightCall[V any] struct {
	owner   account
	done    chan struct{}
	v       V
	err     error
	waiters int
	ended   bool
}

func newFlightGroup[V any](most int, timeout time.Duration, drop func(V)) *flightGroup[V] {
	f := &flightGroup[V]{max: most, share: int(shareOf(int64(most), 1)), timeout: timeout, drop: drop}
	f.mu.calls = map[urlKey]*flightCall[V]{}
	f.mu.cancel = map[*flightCall[V]]context.CancelFunc{}
	f.mu.hosts, f.mu.clients = map[string]int{}, map[string]int{}
	return f
}

// runShared returns the result of run, or of a run with the same key that another caller has
// started, or ctx's error if ctx ends first. It calls take before the result can be dropped. A run
// is charged to o.
func (f *flightGroup[V]) runShared(ctx context.Context, k urlKey, o account, run func(context.Context) (V, error), take func(V)) error {
	c, err := f.joinFlight(ctx, k, o, run)
	if err != nil {
		return err
	}
	defer f.leaveFlight(k, c)
	select {
	case <-c.done:
		if c.err == nil {
			take(c.v)
		}
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// joinFlight returns the run for k, which it starts if there is none.
func (f *flightGroup[V]) joinFlight(ctx context.Context, k urlKey, o account, run func(context.Context) (V, error)) (*flightCall[V], error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.mu.calls[k]; c != nil {
		c.waiters++
		return c, nil
	}
	if f.mu.closed {
		return nil, fault.New(fault.Unavailable, "media URL: this server is about to stop")
	}
	if err := f.checkRoomLocked(o); err != nil {
		return nil, err
	}
	f.countLocked(o, 1)
	c := &flightCall[V]{owner: o, done: make(chan struct{}), waiters: 1}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.timeout)
	f.mu.calls[k], f.mu.cancel[c] = c, cancel
	f.running.Go(func() {
		v, err := run(ctx)
		cancel()
		f.finishFlight(k, c, v, err)
	})
	return c, nil
}

// checkRoomLocked returns an error if nothing more may run on o's account.
func (f *flightGroup[V]) checkRoomLocked(o account) error {
	what := ""
	switch {
	case len(f.mu.cancel) >= f.max:
	case o.host != "" && f.mu.hosts[o.host] >= f.share:
		what = " from its host"
	case o.client != "" && f.mu.clients[o.client] >= f.share:
		what = " for this API key"
	default:
		return nil
	}
	return fault.New(fault.Overloaded, "media URL: too many files are being fetched%s: try again, or send the file as a data: URI", what)
}

// countLocked adds n to what runs on o's account.
func (f *flightGroup[V]) countLocked(o account, n int) {
	add := func(of map[string]int, name string) {
		if of[name] += n; of[name] == 0 {
			delete(of, name)
		}
	}
	add(f.mu.hosts, o.host)
	add(f.mu.clients, o.client)
}

// finishFlight records the result of a run.
func (f *flightGroup[V]) finishFlight(k urlKey, c *flightCall[V], v V, err error) {
	f.mu.Lock()
	c.v, c.err, c.ended = v, err, true
	delete(f.mu.cancel, c)
	f.countLocked(c.owner, -1)
	if f.mu.calls[k] == c {
		delete(f.mu.calls, k)
	}
	unwanted := c.waiters == 0 && err == nil
	f.mu.Unlock()
	close(c.done)
	if unwanted {
		f.drop(v)
	}
}

// leaveFlight records that one caller no longer waits for c.
func (f *flightGroup[V]) leaveFlight(k urlKey, c *flightCall[V]) {
	f.mu.Lock()
	c.waiters--
	last := c.waiters == 0
	if last && !c.ended {
		f.mu.cancel[c]()
		if f.mu.calls[k] == c { // a later caller starts a new run
			delete(f.mu.calls, k)
		}
	}
	unwanted := last && c.ended && c.err == nil
	f.mu.Unlock()
	if unwanted {
		f.drop(c.v)
	}
}

// closeAll cancels all runs, waits for them, and prevents new ones.
func (f *flightGroup[V]) closeAll() {
	f.mu.Lock()
	f.mu.closed = true
	for _, cancel := range f.mu.cancel {
		cancel()
	}
	f.mu.Unlock()
	f.running.Wait()
}

// failureTTL is how long failures are cached: a conversation contains its pictures again in each
// turn.
const failureTTL = time.Minute

// sizeCache caches the results of Size: a bounded number of entries, evicting the least recently
// used.
type sizeCache struct {
	ttl time.Duration
	now func() time.Time
	mu  struct {
		sync.Mutex
		entries *bounded.Cache[urlKey, sizeEntry]
	}
}

// sizeEntry is what is known about a URL.
type sizeEntry struct {
	info    probe.Info
	err     error
	partial bool // the picture's orientation was not determined
	expires time.Time
}

func newSizeCache(most int, ttl time.Duration, now func() time.Time) *sizeCache {
	s := &sizeCache{ttl: ttl, now: now}
	s.mu.entries = bounded.NewCache[urlKey](most, bounded.CountEntries[sizeEntry])
	return s
}

// getSize returns what is known about k, if anything.
func (s *sizeCache) getSize(k urlKey) (sizeEntry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.mu.entries.Get(k)
	if ok && s.now().After(e.expires) {
		s.mu.entries.Remove(k)
		return sizeEntry{}, false
	}
	return e, ok
}

// putSize stores what is known about k.
func (s *sizeCache) putSize(k urlKey, e sizeEntry) {
	e.expires = s.now().Add(s.ttl)
	if e.err != nil {
		e.expires = s.now().Add(min(failureTTL, s.ttl))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.mu.entries.Get(k); ok && e.partial && !old.partial && old.err == nil {
		return // more was found in the meantime
	}
	s.mu.entries.Put(k, e)
}
