package load

import (
	"context"
	"sync"
)

// workerPool has the workers. In an open loop idle workers are used last in, first out, and a few spare ones
// are kept connected: a request which is due does not wait for a handshake unless many come at once.
type pool struct {
	run  *run
	max  int
	idle []*worker // before startWorkers
	mu   struct {
		sync.Mutex
		idle  []*worker
		count int
	}
	free chan struct{} // signals that a worker is idle
}

func newPool(r *run, limit int) pool {
	return pool{run: r, max: limit, free: make(chan struct{}, 1)}
}

// spareWorkers returns how many workers to keep idle when n are in use.
func spareWorkers(n int) int { return 4 + n/8 }

// startWorkers starts the workers which were made.
func (p *pool) begin(live context.Context) {
	for _, w := range p.idle {
		if p.run.cfg.Concurrency > 0 {
			p.run.workers.Go(func() { w.loop(live) })
			continue
		}
		p.mu.Lock()
		p.mu.count++
		p.mu.idle = append(p.mu.idle, w)
		p.mu.Unlock()
		p.run.workers.Go(func() { w.work(live) })
	}
}

// acquireWorker returns an idle worker. It makes one if there is none, and waits for one at the limit; nil at
// the end of the run. Only the dispatcher calls it.
func (p *pool) get(live context.Context) *worker {
	for {
		if w := p.take(live); w != nil {
			return w
		}
		select {
		case <-p.free:
		case <-p.run.stop:
			return nil
		}
	}
}

func (p *pool) take(live context.Context) *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	var w *worker
	if n := len(p.mu.idle); n > 0 {
		w = p.mu.idle[n-1]
		p.mu.idle[n-1] = nil
		p.mu.idle = p.mu.idle[:n-1]
	} else if p.mu.count < p.max {
		p.mu.count++
		w = newWorker(p.run)
		p.run.workers.Go(func() { w.work(live) })
	}
	if len(p.mu.idle) < spareWorkers(p.mu.count-len(p.mu.idle)) && p.mu.count < p.max && w != nil {
		p.mu.count++
		spare := newWorker(p.run)
		p.run.workers.Go(func() {
			_ = spare.connect(live) // its first request reports the error
			p.put(spare)
			spare.work(live)
		})
	}
	return w
}

// releaseWorker returns a worker to the pool.
func (p *pool) put(w *worker) {
	p.mu.Lock()
	p.mu.idle = append(p.mu.idle, w)
	p.mu.Unlock()
	select {
	case p.free <- struct{}{}:
	default:
	}
}
