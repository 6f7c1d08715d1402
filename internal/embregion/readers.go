package embregion

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/obs"
	"penstock/internal/plane/xfer"
)

// ReadersConfig configures Readers.
type ReadersConfig struct {
	// Regions bounds the regions which are mapped at once. Default: 64.
	Regions int
	Log     *slog.Logger
}

// Readers map the regions of other workers of this host. They are safe for concurrent use.
type Readers struct {
	cfg     ReadersConfig
	log     *slog.Logger
	changed chan struct{}
	mu      struct {
		sync.Mutex
		wanted []string         // addresses
		views  map[string]*view // which are mapped
	}
	hits, misses atomic.Uint64
}

// NewReaders returns Readers which map nothing until Run.
func NewReaders(cfg ReadersConfig) *Readers {
	cfg.Regions = cmp.Or(cfg.Regions, 64)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	r := &Readers{cfg: cfg, log: obs.Component(cfg.Log, "engine"), changed: make(chan struct{}, 1)}
	r.mu.views = map[string]*view{}
	return r
}

// SetRegions replaces the addresses of the regions to be mapped. Regions of other hosts are left out. Beyond the bound,
// mapped ones stay.
func (r *Readers) SetRegions(addrs []string) {
	r.mu.Lock()
	r.mu.wanted = slices.Clone(addrs)
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Run maps regions until ctx ends; then it unmaps all and returns nil.
func (r *Readers) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	cancels := map[string]context.CancelFunc{}
	for {
		r.mu.Lock()
		wanted := r.mu.wanted
		r.mu.Unlock()
		for addr, cancel := range cancels { // the order does not matter
			if !slices.Contains(wanted, addr) {
				cancel()
				delete(cancels, addr)
			}
		}
		for _, addr := range wanted {
			if cancels[addr] == nil && len(cancels) < r.cfg.Regions && xfer.IsHere(addr) {
				var life context.Context
				life, cancels[addr] = context.WithCancel(ctx)
				following.Go(func() { r.followRegion(life, addr) })
			}
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			for _, cancel := range cancels { // they have ended with ctx
				cancel()
			}
			return nil
		}
	}
}

// followRegion keeps a region mapped until ctx ends. Its owner may have ended before it is deregistered.
func (r *Readers) followRegion(ctx context.Context, addr string) {
	wait := backoff.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second}
	for ctx.Err() == nil {
		mapped, err := xfer.OpenRegion(ctx, addr)
		if err == nil {
			var v *view
			if v, err = newView(mapped.Bytes, mapped.Notes); err == nil {
				wait.Reset()
				r.setView(addr, v)
				mapped.Await(ctx)
				r.removeView(addr, v)
				v.awaitEnd()
			}
			mapped.Close()
		}
		if err != nil && ctx.Err() == nil {
			r.log.Debug("cannot read the embedding cache of another worker of this host, trying again", "region", addr, "error", err)
		}
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

func (r *Readers) setView(addr string, v *view) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.views[addr] = v
}

// removeView makes later reads find no view, unless another one has taken its place.
func (r *Readers) removeView(addr string, v *view) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.views[addr] == v {
		delete(r.mu.views, addr)
	}
}

// beginRead returns the view of a region, which the caller gives back with endRead; nil if it is not mapped.
func (r *Readers) beginRead(addr string) *view {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.mu.views[addr]
	if v != nil {
		v.reading.Add(1) // awaitEnd comes after it was removed
	}
	return v
}

// Wanted describes rows of which a reader knows the key.
type Wanted struct {
	Key        kv.Digest // see embcache.RowKey.TierKey
	Kind, Type uint8
	// Rows and Width are their shape, and Bytes their size.
	Rows, Width, Bytes int
}

// Found are rows which were copied out of a region.
type Found struct {
	Grid   [3]int
	Digest xfer.Digest // see xfer.DigestOf
}

// ReadRows copies rows out of the first of some regions which has them. into provides the memory for them, once they are
// found and their grid is known, and nil if that cannot be; it may be called again for another region. It counts a hit or
// a miss, unless none of the regions is mapped. The content of the memory is undefined after a miss. ReadRows sends
// nothing and waits for no process.
func (r *Readers) ReadRows(addrs []string, want *Wanted, into func(grid [3]int) []byte) (Found, bool) {
	mapped := false
	for _, addr := range addrs {
		v := r.beginRead(addr)
		if v == nil {
			continue
		}
		mapped = true
		found, ok := v.readAndLeave(want, into)
		if ok {
			r.hits.Add(1)
			return found, true
		}
	}
	if mapped {
		r.misses.Add(1)
	}
	return Found{}, false
}

// Stats are figures of Readers.
type Stats struct {
	Regions      int // which are mapped
	Hits, Misses uint64
}

// Stats returns the figures of now.
func (r *Readers) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{Regions: len(r.mu.views), Hits: r.hits.Load(), Misses: r.misses.Load()}
}
