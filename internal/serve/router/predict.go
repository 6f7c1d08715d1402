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
	// approxTTL is for how long a prompt is believed to be cached where it was sent, when
	// there are no events that say so.
	approxTTL = 2 * time.Minute
	// maxSent bounds the attempts of which a report is awaited. Those beyond it go without.
	maxSent = 65536
)

// predictions is what the router believes to be cached because it sent it there. Without
// events that is all it knows, for minutes, and what workers report corrects it. With events
// it is what will be true in a moment: of two requests with one prompt the second finds the
// first one's worker, although that one has not computed anything yet.
//
// Its lock is taken by itself, never under another, nor another under it. Time in it is what
// now says under the lock.
type predictions struct {
	now   func() kv.Mono
	alone bool // there are no events: reports count
	ttl   time.Duration
	// approx is nil if nothing is predicted. It is written, and asked for anything but
	// Match, by whoever holds mu.
	approx *prefix.Approx

	mu struct {
		sync.Mutex
		lives map[kv.Worker]life // of the workers that exist
		sent  map[slots.Key]sent
		// tried is how predictions came true, by worker that exists.
		tried map[kv.Worker]*tried
	}
}

// sent is an attempt that was sent to a worker and of which nothing was heard yet.
type sent struct {
	worker    kv.Worker
	epoch     uint64
	at        kv.Mono
	blockSize int
	prompt    int  // tokens
	predicted int  // blocks, of those that the worker can report
	known     int  // of those, what events say, or all if there are none
	looked    bool // it was looked up what is cached, so that predicted says something
	// chain are the prefixes of the prompt, if reports count.
	chain []kv.SeqHash
}

// open makes p ready. ttl is for how long something is believed, 0 for nothing.
func (p *predictions) open(cfg *Config, ttl time.Duration, now func() kv.Mono) (err error) {
	p.now, p.alone, p.ttl = now, cfg.NoKVEvents, ttl
	p.mu.lives, p.mu.sent, p.mu.tried = map[kv.Worker]life{}, map[slots.Key]sent{}, map[kv.Worker]*tried{}
	if ttl > 0 {
		p.approx, err = prefix.NewApprox(prefix.ApproxConfig{TTL: ttl, Index: cfg.Index})
	}
	return err
}

// on reports whether anything is predicted.
func (p *predictions) on() bool { return p.ttl > 0 }

// know takes over the set of workers from discovery. Of those that are gone, and of earlier
// lives, nothing is believed any more.
func (p *predictions) know(lives map[kv.Worker]life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.mu.lives
	p.mu.lives = maps.Clone(lives)
	for w, l := range old { // each is its own affair
		now := p.mu.lives[w]
		if now.epoch != l.epoch || now.publishes != l.publishes {
			delete(p.mu.tried, w)
		}
		if p.approx != nil && now.epoch != l.epoch {
			p.approx.Drop(w)
		}
	}
}

// heed has events win over what is believed beside them: what a worker removed is not
// believed any more, and nothing of it while some of its events are missing, which might have
// said so.
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

// match looks a prompt up. It waits for nobody.
func (p *predictions) match(m *prefix.Match, chain []kv.SeqHash) { p.approx.Match(m, chain, nil) }

// note remembers that an attempt was sent to a worker, with a prompt whose full blocks are
// those of sc.
func (p *predictions) note(key slots.Key, d *route.Decision, prompt int, sc *scratch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life, known := p.mu.lives[d.Worker]
	if !known {
		return // it has just gone
	}
	now := p.now()
	if len(p.mu.sent) < maxSent && prompt > 0 { // of a prompt that nobody knows nothing is predicted
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

// report notes how many tokens of an attempt's prompt its worker had cached, and returns what
// that says. ok is false if nothing is known of the attempt, or not any more.
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
	if s.looked && (p.alone || life.publishes) { // of others it is known that nothing is known
		out.changed = p.try(s.worker).add(&out, &s)
	}
	return out, true
}

// forget ends the wait for an attempt's report.
func (p *predictions) forget(key slots.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.sent, key)
}

// tidy forgets what is too old; attempts are after ttl.
func (p *predictions) tidy(ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.approx != nil {
		p.approx.Expire(now)
	}
	for key, s := range p.mu.sent { // each is its own affair
		if now.Sub(s.at) > ttl {
			delete(p.mu.sent, key)
		}
	}
}

// stats returns the sizes and totals of what is predicted.
func (p *predictions) stats() (st prefix.ApproxStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.approx != nil {
		st = p.approx.Stats()
	}
	return st
}

// holders returns the workers that are believed to hold something, in order.
func (p *predictions) holders() []kv.Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.approx == nil {
		return nil
	}
	return p.approx.Index().AppendWorkers(nil)
}

// held appends to dst what w is believed to hold.
func (p *predictions) held(dst []prefix.Block, w kv.Worker) []prefix.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.approx.Index().AppendBlocks(dst, w)
}
