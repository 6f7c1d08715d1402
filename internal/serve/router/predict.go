package router

import (
	"maps"
	"slices"
	"sync"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/route"
	"penstock/core/slots"
)

const (
	// approxTTL is how long a prompt is predicted to stay cached where it was sent if there are no
	// events.
	approxTTL = 2 * time.Minute
	// maxSent bounds the attempts whose report is awaited. The reports of further attempts are not
	// used.
	maxSent = 65536
)

// predictions are the cache contents that the router predicts from the requests it sent. Without events
// they are its only knowledge: they last for minutes and the workers' reports correct them. With events
// they cover the time until the events arrive: of two requests with one prompt the second finds the
// first one's worker before that has computed anything.
//
// Its lock is never taken together with another one. It reads now under the lock.
type predictions struct {
	now   func() kv.Mono
	alone bool // there are no events: reports count
	ttl   time.Duration
	// approx is nil if nothing is predicted. Only the holder of mu writes it or calls methods other
	// than Match.
	approx *prefix.Approx

	mu struct {
		sync.Mutex
		lives map[kv.Worker]life // of the workers that exist
		sent  map[slots.Key]sent
		// tried compares predictions with reports, by existing worker.
		tried map[kv.Worker]*tried
	}
}

// sentAttempt is an attempt that was sent to a worker whose report is still awaited.
type sent struct {
	worker    kv.Worker
	epoch     uint64
	at        kv.Mono
	blockSize int
	prompt    int  // tokens
	predicted int  // blocks, of the blocks that the worker can report
	known     int  // the part of predicted that events reported, or all of it without events
	looked    bool // the prompt was looked up, so predicted is valid
	// chain holds the prefixes of the prompt, if reports count.
	chain []kv.SeqHash
}

// initialize initializes p. A prediction lasts for ttl; 0 predicts nothing.
func (p *predictions) open(cfg *Config, ttl time.Duration, now func() kv.Mono) (err error) {
	p.now, p.alone, p.ttl = now, cfg.NoKVEvents, ttl
	p.mu.lives, p.mu.sent, p.mu.tried = map[kv.Worker]life{}, map[slots.Key]sent{}, map[kv.Worker]*tried{}
	if ttl > 0 {
		p.approx, err = prefix.NewApprox(prefix.ApproxConfig{TTL: ttl, Index: cfg.Index})
	}
	return err
}

// isEnabled reports whether anything is predicted.
func (p *predictions) on() bool { return p.ttl > 0 }

// setWorkers takes over the set of workers from discovery. It drops the predictions for removed workers
// and for earlier epochs.
func (p *predictions) know(lives map[kv.Worker]life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.mu.lives
	p.mu.lives = maps.Clone(lives)
	for w, l := range old { // the order does not matter
		now := p.mu.lives[w]
		if now.epoch != l.epoch || now.publishes != l.publishes {
			delete(p.mu.tried, w)
		}
		if p.approx != nil && now.epoch != l.epoch {
			p.approx.Drop(w)
		}
	}
}

// applyEvents makes events override predictions: a block that a worker removed is no longer predicted,
// and while some of a worker's events are missing, which may have removed blocks, nothing is predicted
// for it.
func (p *predictions) heed(w kv.Worker, events []kv.Event, v feed.Verdict) {
	if p.approx == nil {
		return
	}
	if v.Outcome != feed.Apply {
		events = nil
	} else {
		events = events[v.Skip:]
	}
	doubt := v.Drop || v.Hide
	if !doubt && !slices.ContainsFunc(events, func(ev kv.Event) bool { return ev.Kind == kv.Removed || ev.Kind == kv.Cleared }) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if doubt {
		p.approx.Drop(w)
	}
	for i := range events {
		p.approx.Retract(w, &events[i])
	}
}

// matchPrefix looks a prompt up. It takes no lock.
func (p *predictions) match(m *prefix.Match, chain []kv.SeqHash) { p.approx.Match(m, chain, nil) }

// recordSent records that an attempt was sent to a worker, with a prompt whose full blocks are in sc.
func (p *predictions) note(key slots.Key, d *route.Decision, prompt int, sc *scratch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life, known := p.mu.lives[d.Worker]
	if !known {
		return // it has just been removed
	}
	now := p.now()
	if len(p.mu.sent) < maxSent && prompt > 0 { // without prompt tokens nothing is predicted
		s := sent{
			worker: d.Worker, epoch: life.epoch, at: now, blockSize: d.BlockSize, prompt: prompt,
			predicted: d.CachedTokens(prompt) / d.BlockSize, looked: sc.looked,
		}
		if s.known = s.predicted; !p.alone {
			s.known = min(s.known, find(sc.lookup.known, d.Worker).Depth())
		}
		if p.approx != nil && p.alone {
			s.chain = append(s.chain, sc.chain...)
		}
		p.mu.sent[key] = s
	}
	if p.approx != nil && !life.noReuse {
		p.approx.Insert(now, d.Worker, sc.chain)
	}
}

// recordReport takes the number of an attempt's prompt tokens that its worker had cached, and returns
// the comparison. ok is false if the attempt is not, or no longer, known.
func (p *predictions) report(key slots.Key, cached int) (out comparison, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, known := p.mu.sent[key]
	if !known {
		return comparison{}, false
	}
	delete(p.mu.sent, key)
	cached = min(max(cached, 0), s.prompt)
	out = comparison{worker: s.worker, predicted: s.predicted * s.blockSize, reported: cached}
	life := p.mu.lives[s.worker]
	if life.epoch != s.epoch {
		return out, true
	}
	if p.approx != nil && p.alone {
		p.approx.Report(p.now(), s.worker, s.chain, s.predicted, cached/s.blockSize)
	}
	if s.looked && (p.alone || life.publishes) { // other workers are known to have no predictions
		out.changed = p.try(s.worker).add(&out, &s)
	}
	return out, true
}

// forgetAttempt stops waiting for an attempt's report.
func (p *predictions) forget(key slots.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.sent, key)
}

// expireOld drops expired predictions, and attempts older than ttl.
func (p *predictions) tidy(ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.approx != nil {
		p.approx.Expire(now)
	}
	for key, s := range p.mu.sent { // the order does not matter
		if now.Sub(s.at) > ttl {
			delete(p.mu.sent, key)
		}
	}
}

// approxStats returns the sizes and totals of the predictions.
func (p *predictions) stats() (st prefix.ApproxStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.approx != nil {
		st = p.approx.Stats()
	}
	return st
}

// listHolders returns the workers with predicted blocks, in order.
func (p *predictions) holders() []kv.Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.approx == nil {
		return nil
	}
	return p.approx.Index().AppendWorkers(nil)
}

// appendHeld appends to dst the blocks predicted for w.
func (p *predictions) held(dst []prefix.Block, w kv.Worker) []prefix.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.approx.Index().AppendBlocks(dst, w)
}
