package simcluster

import (
	"crypto/sha256"
	"math"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
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

func (c *cluster) openEncoders() {
	c.encoders = make([]simEncoder, c.cfg.EncodeWorkers)
	for i := range c.encoders {
		e := &c.encoders[i]
		e.id = kv.WorkerID(len(c.workers) + i + 1)
		e.timing = c.cfg.Timing
		e.timing.Seed = deriveSeed(c.cfg.Timing.Seed, uint64(len(c.workers)+i))
		e.Timing, e.Rows = &e.timing, sim.NewRowMemory(c.cfg.EmbeddingCache)
		c.watchRows(e.Rows, e.id, 0, &c.now)
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
		c.queue.push(end, eventObjectEncoded, uint32(e.id)-uint32(len(c.workers))-1, 0)
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
	f.outcome, f.load = rowsSent, e.Jobs()
	c.queue.push(c.now.Add(c.cfg.Delay+c.cfg.rowTransferTime(f.tokens)), eventRowsArrived, at, 0)
}

// startEncoding has those parts of a scheduled call made ready which end after its first ready tokens: by other workers, or
// by the worker's own encoders. It reports whether some are ready now.
func (w *simWorker) startEncoding(c *cluster, at uint32, ready int) (found bool) {
	cl := &c.calls.all[at]
	for i := range cl.parts {
		if p := &cl.parts[i]; p.End > ready && !p.Ready && !p.Elsewhere {
			w.fetchPart(c, at, i)
		}
	}
	w.encoded = w.encoder.StartSequence(c.now, paged.SeqID(at), cl.parts, ready, w.encoded[:0])
	w.scheduleEncoded(c)
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

// finishEncoding takes what the worker's own encoders have encoded; while a batch is computed the sequences wait for its
// end.
func (w *simWorker) finishEncoding(c *cluster, epoch uint32) {
	if !w.alive || uint32(w.epoch) != epoch {
		return
	}
	w.arrived = w.encoder.FinishDue(c.now, w.arrived)
	w.scheduleEncoded(c)
	w.wakeWorker(c)
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
	u.Fetched, u.FetchMisses = c.rowsFetched, c.fetchMisses
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
	if c.RowLatency < 0 || c.RowLatency > maxDelay || !(c.RowBandwidth == 0 || c.RowBandwidth >= minRowBandwidth && c.RowBandwidth <= maxRowBandwidth) {
		return fault.New(fault.Invalid, "simcluster: rows of embeddings cannot come after %v at %g GB/s: from 0s to %v, and 0 or %g to %g GB/s", c.RowLatency, c.RowBandwidth, maxDelay, minRowBandwidth, maxRowBandwidth)
	}
	return nil
}
