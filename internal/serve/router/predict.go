package router

import (
	"maps"
	"slices"
	"sync"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/prefix"
	"penstock/core/route"
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
	now           func() kv.Mono
	withoutEvents bool // there are no events: reports count
	ttl           time.Duration
	// approx is nil if nothing is predicted. Only the holder of mu writes it or calls methods other
	// than Match.
	approx *prefix.Approx

	mu struct {
		sync.Mutex
		lives map[kv.Worker]incarnation // of the workers that exist
		sent  map[activeseq.AttemptKey]sentAttempt
		// tried compares predictions with reports, by existing worker.
		tried map[kv.Worker]*predictionRecord
	}
}

// sentAttempt is an attempt that was sent to a worker whose report is still awaited.
type sentAttempt struct {
	worker     kv.Worker
	epoch      uint64
	at         kv.Mono
	blockSize  int
	prompt     int  // tokens
	predicted  int  // blocks, of the blocks that the worker can report
	fromEvents int  // the part of predicted that events reported, or all of it without events
	lookedUp   bool // the prompt was looked up, so predicted is valid
	// chain holds the prefixes of the prompt, if reports count.
	chain []kv.SeqHash
}

// initialize initializes p. A prediction lasts for ttl; 0 predicts nothing.
func (p *predictions) initialize(cfg *Config, ttl time.Duration, now func() kv.Mono) (err error) {
	p.now, p.withoutEvents, p.ttl = now, cfg.NoKVEvents, ttl
	p.mu.lives, p.mu.sent, p.mu.tried = map[kv.Worker]incarnation{}, map[activeseq.AttemptKey]sentAttempt{}, map[kv.Worker]*predictionRecord{}
	if ttl > 0 {
		p.approx, err = prefix.NewApprox(prefix.ApproxConfig{TTL: ttl, Index: cfg.Index})
	}
	return err
}

// isEnabled reports whether anything is predicted.
func (p *predictions) isEnabled() bool { return p.ttl > 0 }

// setWorkers takes over the set of workers from discovery. It drops the predictions for removed workers
// and for earlier epochs.
func (p *predictions) setWorkers(lives map[kv.Worker]incarnation) {
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
			p.approx.DropWorker(w)
		}
	}
}

// applyEvents makes events override predictions: a block that a worker removed is no longer predicted,
// and while some of a worker's events are missing, which may have removed blocks, nothing is predicted
// for it.
func (p *predictions) applyEvents(w kv.Worker, events []kv.Event, v kvfeed.FeedVerdict) {
	if p.approx == nil {
		return
	}
	if v.Outcome != kvfeed.Apply {
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
		p.approx.DropWorker(w)
	}
	for i := range events {
		p.approx.RetractEvent(w, &events[i])
	}
}

// matchPrefix looks a prompt up. It takes no lock.
func (p *predictions) matchPrefix(m *prefix.Match, chain []kv.SeqHash) { p.approx.Match(m, chain, nil) }

// recordSent records that an attempt was sent to a worker, with a prompt whose full blocks are in sc.
func (p *predictions) recordSent(key activeseq.AttemptKey, d *route.Decision, prompt int, sc *decisionScratch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life, known := p.mu.lives[d.Worker]
	if !known {
		return // it has just been removed
	}
	now := p.now()
	if len(p.mu.sent) < maxSent && prompt > 0 { // without prompt tokens nothing is predicted
		s := sentAttempt{
			worker: d.Worker, epoch: life.epoch, at: now, blockSize: d.BlockSize, prompt: prompt,
			predicted: d.CachedTokens(prompt) / d.BlockSize, lookedUp: sc.lookedUp,
		}
		if s.fromEvents = s.predicted; !p.withoutEvents {
			s.fromEvents = min(s.fromEvents, findOverlap(sc.lookup.known, d.Worker).Depth())
		}
		if p.approx != nil && p.withoutEvents {
			s.chain = append(s.chain, sc.chain...)
		}
		p.mu.sent[key] = s
	}
	if p.approx != nil && !life.noReuse {
		p.approx.RecordSent(now, d.Worker, sc.chain)
	}
}

// recordReport takes the number of an attempt's prompt tokens that its worker had cached, and returns
// the comparison. ok is false if the attempt is not, or no longer, known.
func (p *predictions) recordReport(key activeseq.AttemptKey, cached int) (out cacheComparison, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, known := p.mu.sent[key]
	if !known {
		return cacheComparison{}, false
	}
	delete(p.mu.sent, key)
	cached = min(max(cached, 0), s.prompt)
	out = cacheComparison{worker: s.worker, predicted: s.predicted * s.blockSize, reported: cached}
	life := p.mu.lives[s.worker]
	if life.epoch != s.epoch {
		return out, true
	}
	if p.approx != nil && p.withoutEvents {
		p.approx.RecordReport(p.now(), s.worker, s.chain, s.predicted, cached/s.blockSize)
	}
	if s.lookedUp && (p.withoutEvents || life.publishes) { // other workers are known to have no predictions
		out.verdictChanged = p.recordLocked(s.worker).addReport(&out, &s)
	}
	return out, true
}

// recordComputed records that an attempt ended whose prompt a worker computed. An engine which keeps one
// sequence in each slot reports the blocks of a running request as removed, and as stored again when it ends:
// until that event arrives they are predicted, so that the next turn of a conversation finds them.
func (p *predictions) recordComputed(w kv.Worker, chain []kv.SeqHash) {
	p.mu.Lock()
	defer p.mu.Unlock()
	life, known := p.mu.lives[w]
	if known && !life.noReuse && len(chain) > 0 && !p.approx.PredictsBlock(w, chain[len(chain)-1]) {
		p.approx.RecordSent(p.now(), w, chain)
	}
}

// forgetAttempt stops waiting for an attempt's report.
func (p *predictions) forgetAttempt(key activeseq.AttemptKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.sent, key)
}

// expireOld drops expired predictions, and attempts older than ttl.
func (p *predictions) expireOld(ttl time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.approx != nil {
		p.approx.ExpireBlocks(now)
	}
	for key, s := range p.mu.sent { // the order does not matter
		if now.Sub(s.at) > ttl {
			delete(p.mu.sent, key)
		}
	}
}

// approxStats returns the sizes and totals of the predictions.
func (p *predictions) approxStats() (st prefix.ApproxStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.approx != nil {
		st = p.approx.Stats()
	}
	return st
}

// listHolders returns the workers with predicted blocks, in order.
func (p *predictions) listHolders() []kv.Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.approx == nil {
		return nil
	}
	return p.approx.Index().AppendWorkers(nil)
}

// appendHeld appends to dst the blocks predicted for w.
func (p *predictions) appendHeld(dst []prefix.Block, w kv.Worker) []prefix.Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.approx.Index().AppendBlocks(dst, w)
}
