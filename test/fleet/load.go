package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Load is clients that send requests with known answers, each its next when it
// has the answer to the last.
type Load struct {
	Client *Client
	URLs   []string // client i talks to URL i modulo their number
	Mix    []Known
	// Fresh is the share of requests that find no cache: they have a salt of their
	// own, which changes no answer.
	Fresh float64
	// Gap is how long a client pauses between requests; 0 is not at all.
	Gap time.Duration
	// Seed makes the order of requests.
	Seed uint64
	// Limit bounds the number of requests; 0 is no bound.
	Limit int64
}

// Running is a load under way.
type Running struct {
	load   *Load
	ctx    context.Context
	leave  context.CancelFunc
	ending atomic.Bool
	sent   atomic.Int64 // requests
	begun  atomic.Int64 // clients
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		tally Tally
		hit   Durations // longest pause after the death of a stream's worker
		live  map[*flight]bool
	}
}

// flight is a stream in progress.
type flight struct {
	mu     sync.Mutex
	worker uint64 // that accepted it; 0 before
	last   time.Time
	hit    time.Time     // when its worker died; zero if it did not
	pause  time.Duration // longest since hit
}

// Start starts the given number of clients. They end when Finish is called, or
// with ctx.
func (l *Load) Start(ctx context.Context, clients int) *Running {
	r := &Running{load: l}
	r.ctx, r.leave = context.WithCancel(ctx)
	r.mu.live = map[*flight]bool{}
	r.Add(clients)
	return r
}

// Add starts further clients.
func (r *Running) Add(clients int) {
	for range clients {
		n := r.begun.Add(1)
		r.wg.Go(func() { r.client(n) })
	}
}

// client is the nth client.
func (r *Running) client(n int64) {
	random := rand.New(rand.NewPCG(r.load.Seed, uint64(n)))
	url := r.load.URLs[int(n)%len(r.load.URLs)]
	pace := time.NewTimer(0)
	defer pace.Stop()
	for !r.ending.Load() && r.ctx.Err() == nil {
		sent := r.sent.Add(1)
		if r.load.Limit > 0 && sent > r.load.Limit {
			return
		}
		known := &r.load.Mix[random.IntN(len(r.load.Mix))]
		req := known.Request
		if random.Float64() < r.load.Fresh {
			req = req.with("cache_salt", fmt.Sprintf("%x-%x-%x", n, sent, random.Uint64()))
		}
		r.one(url, req, known)
		if r.load.Gap > 0 {
			pace.Reset(r.load.Gap)
			select {
			case <-pace.C:
			case <-r.ctx.Done():
			}
		}
	}
}

// one sends a request and counts what became of it.
func (r *Running) one(url string, req Request, known *Known) {
	f := &flight{}
	r.mu.Lock()
	r.mu.live[f] = true
	r.mu.Unlock()
	o := r.load.Client.Stream(r.ctx, url, req, f)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.live, f)
	r.mu.tally.count(&o, known, r.ctx.Err() != nil)
	// A stream that was elsewhere already when its first worker died was not hit.
	if !f.hit.IsZero() && o.Err == nil && o.Moved() > 0 {
		r.mu.hit.Add(f.pause)
	}
}

// Accepted implements Observer.
func (f *flight) Accepted(worker uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.worker, f.last = worker, time.Now()
}

// Text implements Observer.
func (f *flight) Text(_ int, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.hit.IsZero() {
		since := f.last
		if f.hit.After(since) {
			since = f.hit
		}
		f.pause = max(f.pause, at.Sub(since))
	}
	f.last = at
}

// Dead notes that a worker died at a time: from then on, the longest pause of each
// stream that it had accepted is how long that stream was held up. Texts that were
// on their way already shorten no pause.
func (r *Running) Dead(worker uint64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.mu.live {
		f.mu.Lock()
		if f.worker == worker && f.hit.IsZero() {
			f.hit = at
		}
		f.mu.Unlock()
	}
}

// Observe returns an observer for a stream that the load does not send, counted
// by Dead as its own are, and a function that ends the counting.
func (r *Running) Observe() (watch Observer, done func(o *Outcome, known *Known)) {
	f := &flight{}
	r.mu.Lock()
	r.mu.live[f] = true
	r.mu.Unlock()
	return f, func(o *Outcome, known *Known) {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.mu.live, f)
		r.mu.tally.count(o, known, r.ctx.Err() != nil)
		if !f.hit.IsZero() && o.Err == nil && o.Moved() > 0 {
			r.mu.hit.Add(f.pause)
		}
	}
}

// InFlight returns how many streams are in progress, and how many of them a
// worker has accepted.
func (r *Running) InFlight() (all, accepted int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.mu.live {
		f.mu.Lock()
		if f.worker != 0 {
			accepted++
		}
		f.mu.Unlock()
	}
	return len(r.mu.live), accepted
}

// Sofar returns a copy of the counts.
func (r *Running) Sofar() Tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	var t Tally
	t.Merge(&r.mu.tally)
	return t
}

// Cut starts a new tally, and returns the one so far.
func (r *Running) Cut() Tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.mu.tally
	r.mu.tally = Tally{}
	return t
}

// NoMore has every client end when it has the answer, or failure, that it waits
// for.
func (r *Running) NoMore() { r.ending.Store(true) }

// Finish lets every client finish the answer that it is in, and returns the
// counts, and how long streams were held up by deaths.
func (r *Running) Finish() (Tally, Durations) {
	r.NoMore()
	return r.Wait()
}

// Abandon ends all streams at once, and returns the counts.
func (r *Running) Abandon() Tally {
	r.NoMore()
	r.leave()
	r.wg.Wait()
	return r.mu.tally
}

// Wait returns when all clients have ended: the limit of requests is reached, or
// ctx ended, or NoMore was called.
func (r *Running) Wait() (Tally, Durations) {
	r.wg.Wait()
	r.leave()
	return r.mu.tally, r.mu.hit
}
