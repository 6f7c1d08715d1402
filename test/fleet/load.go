package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Load is a set of clients which send requests with known answers, each the next one when it has the last
// answer.
type Load struct {
	Client *Client
	URLs   []string // client i uses URL i modulo their number
	Mix    []KnownRequest
	// Fresh is the share of uncached requests: they have their own salt, which changes no answer.
	Fresh float64
	// Gap is a client's pause between requests; 0 is none.
	Gap time.Duration
	// Seed determines the order of requests.
	Seed uint64
	// Limit bounds the number of requests; 0 is no bound.
	Limit int64
}

// RunningLoad is a load in progress.
type RunningLoad struct {
	load   *Load
	ctx    context.Context
	cancel context.CancelFunc
	ending atomic.Bool
	sent   atomic.Int64 // requests
	begun  atomic.Int64 // clients
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		tally OutcomeCounts
		hit   Durations // longest pause after the death of a stream's worker
		live  map[*activeStream]bool
	}
}

// activeStream is a stream in progress.
type activeStream struct {
	mu         sync.Mutex
	worker     uint64 // which accepted it; 0 before
	last       time.Time
	workerDied time.Time     // when its worker died; zero if it did not
	pause      time.Duration // longest since then
}

// StartClients starts clients. They end when FinishLoad is called, or with ctx.
func (l *Load) StartClients(ctx context.Context, clients int) *RunningLoad {
	r := &RunningLoad{load: l}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.mu.live = map[*activeStream]bool{}
	r.AddClients(clients)
	return r
}

// AddClients starts further clients.
func (r *RunningLoad) AddClients(clients int) {
	for range clients {
		n := r.begun.Add(1)
		r.wg.Go(func() { r.runClient(n) })
	}
}

// runClient is the nth client.
func (r *RunningLoad) runClient(n int64) {
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
			req = req.withField("cache_salt", fmt.Sprintf("%x-%x-%x", n, sent, random.Uint64()))
		}
		r.sendOne(url, req, known)
		if r.load.Gap > 0 {
			pace.Reset(r.load.Gap)
			select {
			case <-pace.C:
			case <-r.ctx.Done():
			}
		}
	}
}

// sendOne sends a request and counts its outcome.
func (r *RunningLoad) sendOne(url string, req Request, known *KnownRequest) {
	f := &activeStream{}
	r.mu.Lock()
	r.mu.live[f] = true
	r.mu.Unlock()
	o := r.load.Client.Stream(r.ctx, url, req, f)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.live, f)
	r.mu.tally.addOutcome(&o, known, r.ctx.Err() != nil)
	// A stream which had already moved when its first worker died was not hit.
	if !f.workerDied.IsZero() && o.Err == nil && o.CountMoves() > 0 {
		r.mu.hit.Add(f.pause)
	}
}

// OnAccepted implements Observer.
func (f *activeStream) OnAccepted(worker uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.worker, f.last = worker, time.Now()
}

// OnText implements Observer.
func (f *activeStream) OnText(_ int, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.workerDied.IsZero() {
		since := f.last
		if f.workerDied.After(since) {
			since = f.workerDied
		}
		f.pause = max(f.pause, at.Sub(since))
	}
	f.last = at
}

// MarkWorkerDead records that a worker died at a time: from then on, the longest pause of each stream which
// it had accepted is the delay of that stream. Texts in flight do not shorten a pause.
func (r *RunningLoad) MarkWorkerDead(worker uint64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.mu.live {
		f.mu.Lock()
		if f.worker == worker && f.workerDied.IsZero() {
			f.workerDied = at
		}
		f.mu.Unlock()
	}
}

// ObserveStream returns an observer for a stream which the load does not send, counted by MarkWorkerDead like
// its own, and a function which ends the counting.
func (r *RunningLoad) ObserveStream() (watch Observer, done func(o *Outcome, known *KnownRequest)) {
	f := &activeStream{}
	r.mu.Lock()
	r.mu.live[f] = true
	r.mu.Unlock()
	return f, func(o *Outcome, known *KnownRequest) {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.mu.live, f)
		r.mu.tally.addOutcome(o, known, r.ctx.Err() != nil)
		if !f.workerDied.IsZero() && o.Err == nil && o.CountMoves() > 0 {
			r.mu.hit.Add(f.pause)
		}
	}
}

// InFlight returns how many streams are in progress, and how many of them a worker has accepted.
func (r *RunningLoad) InFlight() (all, accepted int) {
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

// AcceptedBy returns how many streams in progress a worker has accepted.
func (r *RunningLoad) AcceptedBy(worker uint64) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.mu.live {
		f.mu.Lock()
		if f.worker == worker {
			n++
		}
		f.mu.Unlock()
	}
	return n
}

// CountsSoFar returns a copy of the counts.
func (r *RunningLoad) CountsSoFar() OutcomeCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	var t OutcomeCounts
	t.MergeCounts(&r.mu.tally)
	return t
}

// TakeCounts resets the counts, and returns the old ones.
func (r *RunningLoad) TakeCounts() OutcomeCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.mu.tally
	r.mu.tally = OutcomeCounts{}
	return t
}

// StopSending makes every client end after its current request.
func (r *RunningLoad) StopSending() { r.ending.Store(true) }

// FinishLoad lets every client finish its current answer, and returns the counts, and the delays by deaths.
func (r *RunningLoad) FinishLoad() (OutcomeCounts, Durations) {
	r.StopSending()
	return r.WaitClients()
}

// AbandonStreams ends all streams at once, and returns the counts.
func (r *RunningLoad) AbandonStreams() OutcomeCounts {
	r.StopSending()
	r.cancel()
	r.wg.Wait()
	return r.mu.tally
}

// WaitClients returns when all clients have ended: at the limit of requests, when ctx ends, or after
// StopSending.
func (r *RunningLoad) WaitClients() (OutcomeCounts, Durations) {
	r.wg.Wait()
	r.cancel()
	return r.mu.tally, r.mu.hit
}
