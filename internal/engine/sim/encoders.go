package sim

import (
	"slices"
	"sync/atomic"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
)

// MediaPart is a media object of a prompt.
type MediaPart struct {
	// Key names its rows; without a digest they are not kept.
	Key  embcache.RowKey
	Kind media.Kind
	// Start and End are the positions of its tokens in the prompt; there is at least one.
	Start, End int
	// Ready says that the request has its rows.
	Ready bool
	// Elsewhere says that its rows come from another worker: encoders pass it over meanwhile.
	Elsewhere bool
	// Missed says that a look-up of its rows was counted as a miss: the next one is not counted.
	Missed bool
	// Refused says that others were asked for its rows in vain: an object with such a part is not handed over.
	Refused bool
}

// UnfinishedRanges returns the ranges of parts, as paged.Sequence.Unfinished.
func UnfinishedRanges(parts []MediaPart) []paged.TokenRange {
	var all []paged.TokenRange
	for i := range parts {
		all = append(all, paged.TokenRange{Start: parts[i].Start, End: parts[i].End})
	}
	return all
}

// MaxEncoders bounds the encoders beside the passes of an engine.
const MaxEncoders = 1024

// Encoders encode the media of an engine: beside its passes, each one object after the other, all from one queue, first
// come, first served; or in its passes, if there are none beside. They are deterministic: the times come from their
// owner, and do not decrease. Only Runs may be read by others.
//
// An object which several sequences wait for is encoded once. When none waits for it any more it is given up, and its
// encoder takes the next one.
type Encoders struct {
	Timing *Timing
	Rows   *RowMemory
	// Runs counts the objects which have been encoded.
	Runs atomic.Uint64
	// TakeOver, if not nil, is asked before an object which has waited in the queue is encoded for ranges of sequences. If
	// it returns true their rows come from elsewhere, and they wait here no more.
	TakeOver func(key *embcache.RowKey, kind media.Kind, tokens int, ranges []paged.RangeID) bool

	encoders []*encoderJob // what each encoder does; nil is nothing
	queue    []*encoderJob
	started  uint64              // jobs
	waits    map[paged.SeqID]int // ranges for which a sequence waits
}

// encoderJob is an object to encode.
type encoderJob struct {
	key     embcache.RowKey
	kind    media.Kind
	tokens  int
	waiters []rowWaiter
	end     kv.Mono // if an encoder has it
}

// rowWaiter is a range of a sequence which waits for its rows.
type rowWaiter struct {
	paged.RangeID
	part *MediaPart // nil if there is none to mark
}

// SetCount sets the number of encoders beside the passes. All are idle then, and nothing is queued. Where no object
// takes time, none is beside them: what is encoded in a pass delays nothing then, and needs no place in a queue.
func (e *Encoders) SetCount(n int) {
	if len(e.Timing.Encoder) == 0 && len(e.Timing.EncoderOf) == 0 {
		n = 0
	}
	e.encoders, e.queue, e.waits = make([]*encoderJob, n), nil, map[paged.SeqID]int{}
}

// EncodesInPass reports whether objects are encoded in the passes: no encoder is beside them.
func (e *Encoders) EncodesInPass() bool { return len(e.encoders) == 0 }

// EncodeInPass makes the objects ready of which a pass computes tokens from start to end, and returns how long that
// takes in milliseconds: objects that are ready, or whose rows the cache has, take none.
func (e *Encoders) EncodeInPass(parts []MediaPart, start, end int) float64 {
	ms := 0.0
	for i := range parts {
		p := &parts[i]
		if p.Ready || p.End <= start || p.Start >= end {
			continue
		}
		p.Ready = true
		if e.lookUpPart(p) {
			continue
		}
		e.Runs.Add(1)
		ms += e.Timing.EncodeMillis(p.Kind, p.End-p.Start)
		e.Rows.KeepRows(&p.Key, p.End-p.Start)
	}
	return ms
}

// lookUpPart reports whether the cache has the rows of a part.
func (e *Encoders) lookUpPart(p *MediaPart) bool {
	if p.Missed {
		p.Missed = false
		return e.Rows.RepeatLookup(&p.Key)
	}
	return e.Rows.LookupRows(&p.Key)
}

// StartSequence encodes those parts of a sequence which end after its first ready tokens, as far as they are not ready,
// elsewhere, being encoded or in the cache, and gives up the others. It ends jobs as FinishDue does, and appends those parts which
// are ready to dst too. The parts must stay where they are until StopSequence.
func (e *Encoders) StartSequence(now kv.Mono, seq paged.SeqID, parts []MediaPart, ready int, dst []paged.RangeID) []paged.RangeID {
	dst = e.FinishDue(now, dst)
	if e.waits[seq] > 0 {
		e.dropWaiters(now, func(w *rowWaiter) bool { return w.Seq == seq && w.part.End <= ready })
	}
	for i := range parts {
		p := &parts[i]
		if p.End > ready && !p.Elsewhere && e.StartPart(now, paged.RangeID{Seq: seq, Index: i}, p) {
			dst = append(dst, paged.RangeID{Seq: seq, Index: i})
		}
	}
	return dst
}

// StartPart is StartSequence for a single part, the range r. It returns true if the part is ready; it ends no jobs.
func (e *Encoders) StartPart(now kv.Mono, r paged.RangeID, p *MediaPart) (ready bool) {
	w := rowWaiter{RangeID: r, part: p}
	p.Ready = p.Ready || !e.isAwaited(w) && (e.lookUpPart(p) || e.encodeFor(now, &p.Key, p.Kind, p.End-p.Start, w))
	return p.Ready
}

// IsEncoding reports whether an object is being encoded, or waits for it.
func (e *Encoders) IsEncoding(key *embcache.RowKey) bool { return e.findJob(key) != nil }

// StopSequence gives up what is encoded for a sequence. It ends jobs as FinishDue does.
func (e *Encoders) StopSequence(now kv.Mono, seq paged.SeqID, dst []paged.RangeID) []paged.RangeID {
	dst = e.FinishDue(now, dst)
	if e.waits[seq] > 0 {
		e.dropWaiters(now, func(w *rowWaiter) bool { return w.Seq == seq })
	}
	return dst
}

// Deadline returns when the next object will have been encoded; ok is false if none is being encoded.
func (e *Encoders) Deadline() (at kv.Mono, ok bool) {
	if i := e.firstDue(); i >= 0 {
		return e.encoders[i].end, true
	}
	return 0, false
}

// FinishDue ends the jobs which are due, in order of their ends, and appends the ranges which waited for them to dst.
func (e *Encoders) FinishDue(now kv.Mono, dst []paged.RangeID) []paged.RangeID {
	for i := e.firstDue(); i >= 0 && e.encoders[i].end <= now; i = e.firstDue() {
		job := e.encoders[i]
		e.encoders[i] = nil
		e.Runs.Add(1)
		e.Rows.KeepRows(&job.key, job.tokens)
		for _, w := range job.waiters {
			e.forgetWait(w.Seq)
			if w.part != nil {
				w.part.Ready = true
			}
			dst = append(dst, w.RangeID)
		}
		e.startQueued(job.end)
	}
	return dst
}

// Jobs returns the number of objects which are being encoded or wait for it.
func (e *Encoders) Jobs() int {
	n := len(e.queue)
	for _, job := range e.encoders {
		if job != nil {
			n++
		}
	}
	return n
}

// firstDue returns the encoder which is the first to end its job, the first of equals; -1 if all are idle.
func (e *Encoders) firstDue() int {
	first := -1
	for i, job := range e.encoders {
		if job != nil && (first < 0 || job.end < e.encoders[first].end) {
			first = i
		}
	}
	return first
}

// EncodeObject encodes an object which is no part of a sequence. It returns true if its rows are there; if not,
// FinishDue appends w.
func (e *Encoders) EncodeObject(now kv.Mono, key *embcache.RowKey, kind media.Kind, tokens int, w paged.RangeID) (ready bool) {
	return e.Rows.LookupRows(key) || e.encodeFor(now, key, kind, tokens, rowWaiter{RangeID: w})
}

// encodeFor makes w wait for an object which the cache does not have, or returns true if it takes no time.
func (e *Encoders) encodeFor(now kv.Mono, key *embcache.RowKey, kind media.Kind, tokens int, w rowWaiter) (ready bool) {
	if job := e.findJob(key); job != nil {
		job.waiters = append(job.waiters, w)
		e.waits[w.Seq]++
		return false
	}
	if e.Timing.EncodeMillis(kind, tokens) == 0 {
		e.Runs.Add(1)
		e.Rows.KeepRows(key, tokens)
		return true
	}
	e.queue = append(e.queue, &encoderJob{key: *key, kind: kind, tokens: tokens, waiters: []rowWaiter{w}})
	e.waits[w.Seq]++
	e.startQueued(now)
	return false
}

// findJob returns the job of an object; nil if there is none, or nothing identifies the object.
func (e *Encoders) findJob(key *embcache.RowKey) *encoderJob {
	if key.Digest == (kv.Digest{}) {
		return nil
	}
	for _, list := range [...][]*encoderJob{e.encoders, e.queue} {
		for _, job := range list {
			if job != nil && job.key == *key {
				return job
			}
		}
	}
	return nil
}

// isAwaited reports whether w waits for a job.
func (e *Encoders) isAwaited(w rowWaiter) bool {
	if e.waits[w.Seq] == 0 {
		return false
	}
	for _, list := range [...][]*encoderJob{e.encoders, e.queue} {
		for _, job := range list {
			if job != nil && slices.Contains(job.waiters, w) {
				return true
			}
		}
	}
	return false
}

// startQueued gives queued objects to idle encoders.
func (e *Encoders) startQueued(now kv.Mono) {
	for i := range e.encoders {
		for e.encoders[i] == nil && len(e.queue) > 0 {
			job := e.queue[0]
			e.queue = slices.Delete(e.queue, 0, 1)
			if e.handOver(job) {
				continue
			}
			job.end = now.Add(e.Timing.EncodeDuration(job.kind, job.tokens, e.started))
			e.started++
			e.encoders[i] = job
		}
	}
}

// handOver reports whether the rows of an object come from elsewhere by now.
func (e *Encoders) handOver(job *encoderJob) bool {
	if e.TakeOver == nil {
		return false
	}
	var ranges []paged.RangeID
	for _, w := range job.waiters {
		if w.part.Refused {
			return false
		}
		ranges = append(ranges, w.RangeID)
	}
	if !e.TakeOver(&job.key, job.kind, job.tokens, ranges) {
		return false
	}
	for _, w := range job.waiters {
		e.forgetWait(w.Seq)
		w.part.Elsewhere, w.part.Missed = true, true
	}
	return true
}

// dropWaiters removes the waiters which satisfy drop, and gives up the jobs which have none any more.
func (e *Encoders) dropWaiters(now kv.Mono, drop func(w *rowWaiter) bool) {
	isLeft := func(job *encoderJob) bool {
		job.waiters = slices.DeleteFunc(job.waiters, func(w rowWaiter) bool {
			dropped := drop(&w)
			if dropped {
				e.forgetWait(w.Seq)
			}
			return dropped
		})
		return len(job.waiters) > 0
	}
	for i, job := range e.encoders {
		if job != nil && !isLeft(job) {
			e.encoders[i] = nil
		}
	}
	e.queue = slices.DeleteFunc(e.queue, func(job *encoderJob) bool { return !isLeft(job) })
	e.startQueued(now)
}

func (e *Encoders) forgetWait(seq paged.SeqID) {
	if e.waits[seq]--; e.waits[seq] == 0 {
		delete(e.waits, seq)
	}
}

// EncodeMillis returns how long an object of so many tokens takes to encode, in milliseconds before Speedup: constant
// before the first point of its kind's table, linear between points; the last line continues.
func (t *Timing) EncodeMillis(kind media.Kind, tokens int) float64 {
	points, own := t.EncoderOf[kind]
	if !own {
		points = t.Encoder
	}
	if tokens <= 0 || len(points) == 0 {
		return 0
	}
	if len(points) == 1 || tokens <= points[0].Tokens {
		return points[0].Millis
	}
	i := 1
	for i < len(points)-1 && points[i].Tokens < tokens {
		i++
	}
	a, b := points[i-1], points[i]
	return max(0, lineAt(float64(a.Tokens), a.Millis, float64(b.Tokens), b.Millis, float64(tokens)))
}

// EncodeDuration returns how long an encoder beside the passes takes for an object, its number-th from 0.
func (t *Timing) EncodeDuration(kind media.Kind, tokens int, number uint64) time.Duration {
	ms := t.EncodeMillis(kind, tokens)
	if ms == 0 {
		return 0
	}
	return toDuration(ms * t.jitterFactor(number) / t.Speedup)
}
