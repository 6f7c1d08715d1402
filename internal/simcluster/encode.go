package simcluster

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/core/rendezvous"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// maxEncodeWorkers bounds the encode workers of a cluster.
const maxEncodeWorkers = 1 << 10

// simEncoder is an encode worker: it encodes one object after the other, each once for all fetches which ask for it
// meanwhile, and keeps their rows.
type simEncoder struct {
	id     kv.WorkerID
	timing sim.Timing
	sim.Encoders
	done []paged.RangeID // scratch; a fetch is the range 0 of a sequence of its number
}

// rowFetch is a worker's request to an encode worker for the rows of an object, on behalf of its calls.
type rowFetch struct {
	worker  uint32
	epoch   uint64 // of the worker
	encoder uint32
	key     embcache.RowKey
	kind    media.Kind
	tokens  int
	load    int // objects of the encode worker, when it answered
	waiting []waitingPart
}

// waitingPart is a call that waits for a media object.
type waitingPart struct {
	call, generation uint32
	part             int
}

// encoderLoad is what a worker knows of an encode worker's load.
type encoderLoad struct {
	inFlight   int // objects for which it asks it
	reported   int // objects which that had when it last answered, at reportedAt
	reportedAt kv.Mono
}

// reportAge is how long a count of an encode worker's objects is used: that of the coordinator in a worker process.
const reportAge = 2 * time.Second

func (c *cluster) openEncoders() {
	c.encoders = make([]simEncoder, c.cfg.EncodeWorkers)
	for i := range c.encoders {
		e := &c.encoders[i]
		e.id = kv.WorkerID(c.cfg.Workers + i + 1)
		e.timing = c.cfg.Timing
		e.timing.Seed = deriveSeed(c.cfg.Timing.Seed, uint64(c.cfg.Workers+i))
		e.Timing, e.Rows = &e.timing, sim.NewRowMemory(c.cfg.EmbeddingCache)
		e.SetCount(1)
	}
}

// appendMediaParts appends the media of a prompt, of which it shows where they are.
func appendMediaParts(parts []sim.MediaPart, r *replay.Request) []sim.MediaPart {
	next := 0
	for i := range r.Media {
		m := &r.Media[i]
		start := m.Start
		switch {
		case len(r.Tokens)+len(r.Text)+len(r.Messages)+len(r.Payload) > 0:
			return parts
		case len(r.Blocks) == 0: // media come first
			start = next
		case start == 0:
			continue
		}
		end := min(start+max(m.Tokens, 0), r.Input)
		if start >= end {
			continue
		}
		next = end
		part := sim.MediaPart{Kind: kindOf(m.Kind), Start: start, End: end}
		if m.ID != "" {
			part.Key = embcache.RowKey{Salt: r.Salt, Digest: sha256.Sum256([]byte(m.Kind + "\x00" + m.ID))}
		}
		parts = append(parts, part)
	}
	return parts
}

// kindOf returns the kind of a name; 0 for an unknown one.
func kindOf(name string) media.Kind {
	for kind := media.Image; kind <= media.Audio; kind++ {
		if kind.String() == name {
			return kind
		}
	}
	return 0
}

// fetchRows asks encode workers for the media of a new call which neither the KV cache nor the embedding cache of the
// worker has, and reports whether the call waits for any.
func (w *simWorker) fetchRows(c *cluster, at uint32) (waits bool) {
	cl := &c.calls.all[at]
	if len(c.encoders) == 0 || len(cl.parts) == 0 {
		return false
	}
	prompt := c.expandPrompt(&c.tasks.all[cl.task])
	cached := w.sched.CachedPrefix(paged.Sequence{Tokens: prompt, Prompt: len(prompt)})
	for i := range cl.parts {
		p := &cl.parts[i]
		if p.End <= cached {
			continue
		}
		if p.Ready = w.encoder.Rows.LookupRows(&p.Key); p.Ready {
			continue
		}
		w.fetchPart(c, at, i)
		cl.missing++
	}
	return cl.missing > 0
}

// fetchPart makes a part of a call wait for its rows from an encode worker.
func (w *simWorker) fetchPart(c *cluster, at uint32, part int) {
	cl := &c.calls.all[at]
	p := &cl.parts[part]
	f, ok := w.fetches[p.Key]
	if !ok {
		f = w.startFetch(c, p)
	}
	c.rowFetches.all[f].waiting = append(c.rowFetches.all[f].waiting, waitingPart{at, cl.generation, part})
	cl.asked[part] = true
}

// startFetch asks an encode worker for the rows of an object.
func (w *simWorker) startFetch(c *cluster, p *sim.MediaPart) uint32 {
	at := c.rowFetches.takeSlot()
	f := &c.rowFetches.all[at]
	*f = rowFetch{worker: w.number, epoch: w.epoch, encoder: w.chooseEncoder(c, &p.Key), key: p.Key, kind: p.Kind, tokens: p.End - p.Start, waiting: f.waiting[:0]}
	if isIdentified(&p.Key) {
		w.fetches[p.Key] = at
	}
	w.loads[f.encoder].inFlight++
	c.queue.push(c.now.Add(c.cfg.Delay), eventRowsAsked, at, 0)
	return at
}

func isIdentified(key *embcache.RowKey) bool { return key.Digest != kv.Digest{} }

// chooseEncoder returns the encode worker which is asked for rows: the one that the coordinator in a worker process
// asks first.
func (w *simWorker) chooseEncoder(c *cluster, key *embcache.RowKey) uint32 {
	c.candidates = c.candidates[:0]
	for i := range c.encoders {
		l := &w.loads[i]
		load := l.inFlight
		if l.reportedAt != 0 && c.now.Sub(l.reportedAt) < reportAge {
			load = max(load, l.reported)
		}
		c.candidates = append(c.candidates, rendezvous.Candidate{ID: c.encoders[i].id, Load: load})
	}
	salt := sha256.Sum256([]byte(key.Salt))
	hash := binary.LittleEndian.Uint64(key.Digest[:8]) ^ binary.LittleEndian.Uint64(salt[:8])
	c.encoderOrder = rendezvous.AppendOrder(c.encoderOrder[:0], hash, c.candidates)
	return uint32(c.encoderOrder[0])
}

// acceptFetch answers a fetch which has reached its encode worker, or encodes the object for it.
func (e *simEncoder) acceptFetch(c *cluster, at uint32) {
	f := &c.rowFetches.all[at]
	if e.EncodeObject(c.now, &f.key, f.kind, f.tokens, paged.RangeID{Seq: paged.SeqID(at)}) {
		e.answerFetch(c, at)
	} else if e.Jobs() == 1 {
		e.scheduleEnd(c)
	}
}

// scheduleEnd schedules the end of the object which is being encoded, if there is one.
func (e *simEncoder) scheduleEnd(c *cluster) {
	if end, busy := e.Deadline(); busy {
		c.queue.push(end, eventObjectEncoded, uint32(e.id)-uint32(c.cfg.Workers)-1, 0)
	}
}

// finishObject ends the object which is being encoded, and begins the next one.
func (e *simEncoder) finishObject(c *cluster) {
	e.done = e.FinishDue(c.now, e.done[:0])
	for _, f := range e.done {
		e.answerFetch(c, uint32(f.Seq))
	}
	e.scheduleEnd(c)
}

func (e *simEncoder) answerFetch(c *cluster, at uint32) {
	f := &c.rowFetches.all[at]
	f.load = e.Jobs()
	c.queue.push(c.now.Add(c.cfg.Delay+e.timing.RowTransferDuration(f.tokens)), eventRowsArrived, at, 0)
}

// finishFetch ends a fetch: the rows are at the worker.
func (w *simWorker) finishFetch(c *cluster, at uint32) {
	f := &c.rowFetches.all[at]
	c.rowFetches.freeSlot(at)
	if !w.alive || w.epoch != f.epoch {
		return
	}
	if w.fetches[f.key] == at {
		delete(w.fetches, f.key)
	}
	l := &w.loads[f.encoder]
	l.inFlight--
	l.reported, l.reportedAt = f.load, c.now
	w.encoder.Rows.KeepRows(&f.key, f.tokens)
	for _, p := range f.waiting {
		cl := &c.calls.all[p.call]
		if cl.generation != p.generation {
			continue // its client has left
		}
		switch cl.state {
		case callAwaitsRows:
			cl.parts[p.part].Ready = true
			if cl.missing--; cl.missing == 0 {
				w.queueCall(c, p.call)
			}
		case callRunning:
			cl.parts[p.part].Ready = true
			w.arrived = append(w.arrived, paged.RangeID{Seq: paged.SeqID(p.call), Index: p.part})
			w.wakeWorker(c)
		default:
		}
	}
}

// startEncoding encodes those parts of a scheduled call which end after its first ready tokens: at the worker's own
// encoders, or at encode workers. It reports whether some are ready now.
func (w *simWorker) startEncoding(c *cluster, at uint32, ready int) (found bool) {
	cl := &c.calls.all[at]
	id := paged.SeqID(at)
	if len(c.encoders) == 0 {
		w.encoded = w.encoder.StartSequence(c.now, id, cl.parts, ready, w.encoded[:0])
		w.scheduleEncoded(c)
		return w.finishRanges(w.encoded)
	}
	w.encoded = w.encoded[:0]
	for i := range cl.parts {
		p := &cl.parts[i]
		if p.End <= ready || cl.asked[i] && !p.Ready {
			continue
		}
		if p.Ready = p.Ready || w.encoder.Rows.LookupRows(&p.Key); p.Ready {
			w.encoded = append(w.encoded, paged.RangeID{Seq: id, Index: i})
			continue
		}
		w.fetchPart(c, at, i)
	}
	return w.finishRanges(w.encoded)
}

// takeEncoded finishes the ranges which have been encoded since the last batch began. As in an engine, that is only
// between batches.
func (w *simWorker) takeEncoded(c *cluster) {
	w.encoded = w.encoder.FinishDue(c.now, w.encoded[:0])
	w.scheduleEncoded(c)
	w.finishRanges(w.encoded)
	w.finishRanges(w.arrived)
	w.arrived = w.arrived[:0]
}

func (w *simWorker) finishRanges(all []paged.RangeID) bool {
	for _, r := range all {
		w.sched.FinishRange(r)
	}
	return len(all) > 0
}

// scheduleEncoded schedules the next end of an object at the worker's own encoders.
func (w *simWorker) scheduleEncoded(c *cluster) {
	if at, busy := w.encoder.Deadline(); busy && at != w.encodedAt {
		w.encodedAt = at
		c.queue.push(at, eventWorkerEncoded, w.number, uint32(w.epoch))
	}
}

// finishEncoding takes what the worker's own encoders have encoded, unless a batch is computed.
func (w *simWorker) finishEncoding(c *cluster, epoch uint32) {
	if w.alive && uint32(w.epoch) == epoch {
		w.wakeWorker(c)
	}
}

// wakeWorker starts a batch unless one is computed.
func (w *simWorker) wakeWorker(c *cluster) {
	if !w.busy {
		w.startBatch(c)
	}
}

// embeddingUse sums the figures of all encoders and embedding caches.
func (c *cluster) embeddingUse() replay.EmbeddingUse {
	u := replay.EmbeddingUse{EncodeWorkers: len(c.encoders), CacheBytes: int64(c.cfg.EmbeddingCache), Objects: c.mediaObjects}
	for i := range c.workers {
		w := &c.workers[i]
		u.EncoderRuns += int64(w.encoder.Runs.Load())
		s := w.encoder.Rows.Stats()
		s.Add(w.pastRows)
		u.Hits, u.Misses, u.Evictions = u.Hits+int64(s.Hits), u.Misses+int64(s.Misses), u.Evictions+int64(s.Evictions)
	}
	for i := range c.encoders {
		e := &c.encoders[i]
		s := e.Rows.Stats()
		u.EncoderRuns += int64(e.Runs.Load())
		u.EncoderHits, u.EncoderMisses = u.EncoderHits+int64(s.Hits), u.EncoderMisses+int64(s.Misses)
		u.Evictions += int64(s.Evictions)
	}
	if n := u.Hits + u.Misses; n > 0 {
		u.HitShare = float64(u.Hits) / float64(n)
	}
	return u
}

// validateEncoding reports what is wrong with encode workers and embedding caches.
func (c *Config) validateEncoding() error {
	if c.EncodeWorkers < 0 || c.EncodeWorkers > maxEncodeWorkers {
		return fault.New(fault.Invalid, "simcluster: %d encode workers: must be between 0 and %d", c.EncodeWorkers, maxEncodeWorkers)
	}
	if c.Encoders < 0 || c.Encoders > sim.MaxEncoders {
		return fault.New(fault.Invalid, "simcluster: %d encoders of a worker: must be between 0 and %d", c.Encoders, sim.MaxEncoders)
	}
	if c.EmbeddingCache < 0 || c.EmbeddingCache > math.MaxInt/2 {
		return fault.New(fault.Invalid, "simcluster: an embedding cache of %d bytes", c.EmbeddingCache)
	}
	return nil
}
