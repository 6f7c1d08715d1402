package kvfeed

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// ExpectWorker adds a worker without a record: one which was discovered, and whose events the event plane may
// have discarded because of their age. If nothing is known of that epoch, all of its events are requested by
// [Tracker.DueRequests]. Call it once the event plane has delivered what it kept. The verdict says whether
// entries of an earlier epoch must be removed from the index.
func (t *Tracker) ExpectWorker(now kv.Mono, w kv.Worker, epoch uint64) FeedVerdict {
	at, known := t.findFeed(w)
	switch {
	case !known:
		t.feeds = slices.Insert(t.feeds, at, newWorkerFeed(now, w))
	case epoch <= t.feeds[at].epoch:
		return FeedVerdict{}
	}
	f := &t.feeds[at]
	lost := f.lost
	f.startEpoch(now, epoch)
	f.hidden = true
	return FeedVerdict{Drop: known, Hide: true, Lost: lost}
}

// SuspectLoss reports that events of w may be missing although no record shows it: the event plane lost
// events of an unknown worker. The worker is asked for the next events; if there are none, a record without
// events ends the repair. It does nothing for a worker which is not known or not live.
func (t *Tracker) SuspectLoss(now kv.Mono, w kv.Worker) FeedVerdict {
	at, known := t.findFeed(w)
	if !known || t.feeds[at].state != Live {
		return FeedVerdict{}
	}
	return t.startRepair(now, &t.feeds[at], Gap)
}

// RejectForeign resynchronizes w because its feed is ahead of it: events accepted with numbers from next on
// were published by another process in its name. A Cleared event with the number next or a later one ends the
// resync. It does nothing for an unknown worker.
func (t *Tracker) RejectForeign(now kv.Mono, w kv.Worker, next uint64) FeedVerdict {
	at, known := t.findFeed(w)
	if !known {
		return FeedVerdict{}
	}
	f := &t.feeds[at]
	f.state, f.next, f.hidden = Resyncing, max(1, next), false
	f.seen = f.next
	t.countLoss(f)
	v := t.withRequest(now, f, Gap)
	v.Drop = true
	return v
}

// startRepair starts the repair of a live feed.
func (t *Tracker) startRepair(now kv.Mono, f *workerFeed, o Outcome) FeedVerdict {
	f.state, f.lastProgress, f.requested, f.hidden = Repairing, now, false, true
	v := t.withRequest(now, f, o)
	v.Hide = true
	return v
}

// HoldRequests stops requests, and giving up repairs, until ReleaseRequests: the event plane is still
// delivering what it kept, which may contain the missing events, or a description which another router
// requested.
func (t *Tracker) HoldRequests() { t.held = true }

// ReleaseRequests ends HoldRequests. What is still missing then is due.
func (t *Tracker) ReleaseRequests() { t.held = false }

// GiveUpRepairs appends to dst, in order, the workers whose repair has made no progress for too long. They
// are resyncing from now on: their whole caches are requested, and the caller drops their entries. Call it
// before DueRequests.
func (t *Tracker) GiveUpRepairs(now kv.Mono, dst []kv.Worker) []kv.Worker {
	if t.held {
		return dst
	}
	for i := range t.feeds {
		f := &t.feeds[i]
		if f.state == Repairing && f.requested && t.canReach(f) && now.Sub(f.lastProgress) >= t.cfg.RepairTimeout {
			f.state, f.next, f.hidden = Resyncing, f.seen, false
			f.health.GivenUp++
			t.totals.GivenUp++
			dst = append(dst, f.worker)
		}
	}
	return dst
}

// DueRequests appends to dst, by worker, the requests which must be sent at now, and counts them as sent.
// Requests can be lost, so it must be called again at the time which [Tracker.Deadline] returns.
func (t *Tracker) DueRequests(now kv.Mono, dst []ResyncRequest) []ResyncRequest {
	for i := range t.feeds {
		f := &t.feeds[i]
		if f.state == Live {
			continue
		}
		if v := t.withRequest(now, f, Ignored); v.Resync {
			dst = append(dst, v.Request)
		}
	}
	return dst
}

// Deadline returns when there may be a repair to give up or a request to send; ok is false if all feeds are
// live or unreachable, and between HoldRequests and ReleaseRequests.
func (t *Tracker) Deadline() (at kv.Mono, ok bool) {
	if t.held {
		return 0, false
	}
	for i := range t.feeds {
		f := &t.feeds[i]
		if f.state == Live || !t.canReach(f) {
			continue
		}
		var due kv.Mono
		switch f.state {
		case Repairing:
			due = f.repairBackoff.nextDue()
			if f.requested {
				due = min(due, f.lastProgress.Add(t.cfg.RepairTimeout))
			}
		case Resyncing:
			due = f.resyncBackoff.nextDue()
		}
		if !ok || due < at {
			at, ok = due, true
		}
	}
	if ok && t.sent >= t.cfg.MaxRequests {
		at = max(at, t.opened.Add(t.cfg.MinBackoff))
	}
	return at, ok
}

// RemoveWorker removes w's feed after the worker was removed. It reports whether w was known. The caller
// drops the worker's entries from the index, with its hidden state.
func (t *Tracker) RemoveWorker(w kv.Worker) bool {
	at, known := t.findFeed(w)
	if known {
		t.feeds = slices.Delete(t.feeds, at, at+1)
	}
	return known
}

// canReach reports whether requests can be sent to the worker of f.
func (t *Tracker) canReach(f *workerFeed) bool {
	return t.cfg.CanReach == nil || t.cfg.CanReach(f.worker)
}

// KeepWorkers removes all workers for which keep is false, as RemoveWorker does.
func (t *Tracker) KeepWorkers(keep func(kv.Worker) bool) {
	t.feeds = slices.DeleteFunc(t.feeds, func(f workerFeed) bool { return !keep(f.worker) })
}

// withRequest returns a verdict with the request which may be sent at now, if there is one, and counts it as
// sent.
func (t *Tracker) withRequest(now kv.Mono, f *workerFeed, o Outcome) FeedVerdict {
	v := FeedVerdict{Outcome: o}
	q := ResyncRequest{Worker: f.worker, Epoch: f.epoch}
	p := &f.resyncBackoff
	if f.state == Repairing {
		p, q.From = &f.repairBackoff, f.next
	}
	if t.sent > 0 && now.Sub(t.opened) >= t.cfg.MinBackoff {
		t.sent = 0
	}
	if t.held || t.sent >= t.cfg.MaxRequests || !t.canReach(f) || !p.allowRequest(now, &t.cfg) {
		return v
	}
	if t.sent == 0 {
		t.opened = now
	}
	t.sent++
	if f.state == Repairing && !f.requested {
		f.requested, f.lastProgress = true, now
	}
	f.health.Resyncs++
	v.Resync, v.Request = true, q
	return v
}

// requestBackoff spaces the requests to one worker.
type requestBackoff struct {
	// asked is when the last request was sent, wait how long the next one waits from then; before the first,
	// asked is the time of creation and wait 0.
	asked kv.Mono
	wait  time.Duration
}

func (p *requestBackoff) nextDue() kv.Mono { return p.asked.Add(p.wait) }

// allowRequest reports whether a request may be sent at now, and if so records it.
func (p *requestBackoff) allowRequest(now kv.Mono, cfg *Config) bool {
	since := now.Sub(p.asked)
	switch {
	case p.wait == 0:
		p.wait = cfg.MinBackoff
	case since < p.wait:
		return false
	case since < p.wait+cfg.MaxBackoff:
		p.wait = min(2*p.wait, cfg.MaxBackoff)
	default:
		p.wait = cfg.MinBackoff
	}
	p.asked = now
	return true
}

// resetWait records that an answer arrives: if it stops, the rest is requested after the shortest wait.
func (p *requestBackoff) resetWait(now kv.Mono, cfg *Config) {
	if p.wait > 0 {
		p.asked, p.wait = now, cfg.MinBackoff
	}
}

// ResyncRequest asks a worker to publish its events from a number on again, under the same numbers, or to
// describe its cache if it no longer has them. The worker is the key of the message and not in its body.
type ResyncRequest struct {
	Worker kv.Worker
	// Epoch is the epoch whose events are requested, From the number of the first one; 0 requests a
	// description of the whole cache.
	Epoch, From uint64
}

const (
	requestMagic   = 0xEC
	requestVersion = 1
	requestSize    = 4 + 8 + 8 // magic, version, zeros; epoch; from
)

// AppendRequest appends the body of the message for q. The body of a request for the whole cache is empty, as
// in the first version of the format; older workers describe their cache for any body.
func AppendRequest(dst []byte, q ResyncRequest) []byte {
	if q.From == 0 {
		return dst
	}
	le := binary.LittleEndian
	dst = append(dst, requestMagic, requestVersion, 0, 0)
	dst = le.AppendUint64(dst, q.Epoch)
	return le.AppendUint64(dst, q.From)
}

// DecodeRequest decodes the body of a request to w. If it fails it also returns a request for the whole
// cache, which answers whatever was requested.
func DecodeRequest(w kv.Worker, data []byte) (ResyncRequest, error) {
	q := ResyncRequest{Worker: w}
	var err error
	switch {
	case len(data) == 0:
		return q, nil
	case len(data) < requestSize:
		err = errTruncated
	case data[0] != requestMagic:
		err = fmt.Errorf("first byte is %#x, not %#x", data[0], requestMagic)
	case data[1] != requestVersion:
		err = fmt.Errorf("%w %d", ErrVersion, data[1])
	}
	if err != nil {
		return q, fmt.Errorf("kvfeed: decode request of %d bytes: %w", len(data), err)
	}
	le := binary.LittleEndian
	q.Epoch, q.From = le.Uint64(data[4:]), le.Uint64(data[12:])
	return q, nil
}
