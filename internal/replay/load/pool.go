package load

import (
	"context"
	"sync"
)

// workerPool has the workers. In an open loop idle workers are used last in, first out, and a few spare ones
// are kept connected: a request which is due does not wait for a handshake unless many come at once.
type workerPool struct {
	run  *loadRun
	max  int
	idle []*loadWorker // before startWorkers
	mu   struct {
		sync.Mutex
		idle  []*loadWorker
		count int
	}
	freed chan struct{} // signals that a worker is idle
}

// spareWorkers returns how many workers to keep idle when n are in use.
func spareWorkers(n int) int { return 4 + n/8 }

// startWorkers starts the workers which were made.
func (p *workerPool) startWorkers(live context.Context) {
	for _, w := range p.idle {
		if p.run.cfg.Concurrency > 0 {
			p.run.workers.Go(func() { w.serveClosedLoop(live) })
			continue
		}
		p.mu.Lock()
		p.mu.count++
		p.mu.idle = append(p.mu.idle, w)
		p.mu.Unlock()
		p.run.workers.Go(func() { w.serveOpenLoop(live) })
	}
}

// acquireWorker returns an idle worker. It makes one if there is none, and waits for one at the limit; nil at
// the end of the run. Only the dispatcher calls it.
func (p *workerPool) acquireWorker(live context.Context) *loadWorker {
	for {
		if w := p.takeOrStart(live); w != nil {
			return w
		}
		select {
		case <-p.freed:
		case <-p.run.stop:
			return nil
		}
	}
}

func (p *workerPool) takeOrStart(live context.Context) *loadWorker {
	p.mu.Lock()
	defer p.mu.Unlock()
	var w *loadWorker
	if n := len(p.mu.idle); n > 0 {
		w = p.mu.idle[n-1]
		p.mu.idle[n-1] = nil
		p.mu.idle = p.mu.idle[:n-1]
	} else if p.mu.count < p.max {
		p.mu.count++
		w = newLoadWorker(p.run)
		p.run.workers.Go(func() { w.serveOpenLoop(live) })
	}
	if len(p.mu.idle) < spareWorkers(p.mu.count-len(p.mu.idle)) && p.mu.count < p.max && w != nil {
		p.mu.count++
		spare := newLoadWorker(p.run)
		p.run.workers.Go(func() {
			_ = spare.ensureConnected(live) // its first request reports the error
			p.releaseWorker(spare)
			spare.serveOpenLoop(live)
		})
	}
	return w
}

// releaseWorker returns a worker to the pool.
func (p *workerPool) releaseWorker(w *loadWorker) {
	p.mu.Lock()
	p.mu.idle = append(p.mu.idle, w)
	p.mu.Unlock()
	select {
	case p.freed <- struct{}{}:
	default:
	}
}
