package feed

import (
	"slices"
	"time"

	"penstock/core/kv"
)

// ExpectWorker adds a worker without a record: one which was discovered, and whose events the event plane may
// have discarded because of their age. If nothing is known of that epoch, all of its events are requested by
// [Tracker.DueRequests]. Call it once the event plane has delivered what it kept. The verdict says whether
// entries of an earlier epoch must be removed from the index.
func (t *Tracker) Expect(now kv.Mono, w kv.Worker, epoch uint64) Verdict {
	at, known := t.find(w)
	switch {
	case !known:
		t.feeds = slices.Insert(t.feeds, at, newFollower(now, w))
	case epoch <= t.feeds[at].epoch:
		return Verdict{}
	}
	f := &t.feeds[at]
	lost := f.lost
	f.begin(now, epoch)
	f.hidden = true
	return Verdict{Drop: known, Hide: true, Lost: lost}
}

// SuspectLoss reports that events of w may be missing although no record shows it: the event plane lost
// events of an unknown worker. The worker is asked for the next events; if there are none, a record without
// events ends the repair. It does nothing for a worker which is not known or not live.
func (t *Tracker) Suspect(now kv.Mono, w kv.Worker) Verdict {
	at, known := t.find(w)
	if !known || t.feeds[at].state != Live {
		return Verdict{}
	}
	return t.doubt(now, &t.feeds[at], Gap)
}

// RejectForeign resynchronizes w because its feed is ahead of it: events accepted with numbers from next on
// were published by another process in its name. A Cleared event with the number next or a later one ends the
// resync. It does nothing for an unknown worker.
func (t *Tracker) Disown(now kv.Mono, w kv.Worker, next uint64) Verdict {
	at, known := t.find(w)
	if !known {
		return Verdict{}
	}
	f := &t.feeds[at]
	f.state, f.next, f.hidden = Doubt, max(1, next), false
	f.seen = f.next
	t.loss(f)
	v := t.request(now, f, Gap)
	v.Drop = true
	return v
}

// startRepair starts the repair of a live feed.
func (t *Tracker) doubt(now kv.Mono, f *follower, o Outcome) Verdict {
	f.state, f.moved, f.wanted, f.hidden = Repair, now, false, true
	v := t.request(now, f, o)
	v.Hide = true
	return v
}

// HoldRequests stops requests, and giving up repairs, until ReleaseRequests: the event plane is still
// delivering what it kept, which may contain the missing events, or a description which another router
// requested.
func (t *Tracker) Hold() { t.held = true }

// ReleaseRequests ends HoldRequests. What is still missing then is due.
func (t *Tracker) Release() { t.held = false }

// GiveUpRepairs appends to dst, in order, the workers whose repair has made no progress for too long. They
// are resyncing from now on: their whole caches are requested, and the caller drops their entries. Call it
// before DueRequests.
func (t *Tracker) GiveUp(now kv.Mono, dst []kv.Worker) []kv.Worker {
	if t.held {
		return dst
	}
	for i := range t.feeds {
		f := &t.feeds[i]
		if f.state == Repair && f.wanted && t.reaches(f) && now.Sub(f.moved) >= t.cfg.Repair {
			f.state, f.next, f.hidden = Doubt, f.seen, false
			f.health.GivenUp++
			t.totals.GivenUp++
			dst = append(dst, f.worker)
		}
	}
	return dst
}

// DueRequests appends to dst, by worker, the requests which must be sent at now, and counts them as sent.
// Requests can be lost, so it must be called again at the time which [Tracker.NextDue] returns.
func (t *Tracker) Due(now kv.Mono, dst []Request) []Request {
	for i := range t.feeds {
		f := &t.feeds[i]
		if f.state == Live {
			continue
		}
		if v := t.request(now, f, Ignored); v.Resync {
			dst = append(dst, v.Request)
		}
	}
	return dst
}

// NextDue returns when there may be a repair to give up or a request to send; ok is false if all feeds are
// live or unreachable, and between HoldRequests and ReleaseRequests.
func (t *Tracker) NextDue() (at kv.Mono, ok bool) {
	if t.held {
		return 0, false
	}
	for i := range t.feeds {
		f := &t.feeds[i]
		if f.state == Live || !t.reaches(f) {
			continue
		}
		var due kv.Mono
		switch f.state {
		case Repair:
			due = f.repair.due()
			if f.wanted {
				due = min(due, f.moved.Add(t.cfg.Repair))
			}
		case Doubt:
			due = f.whole.due()
		}
		if !ok || due < at {
			at, ok = due, true
		}
	}
	if ok && t.sent >= t.cfg.Asks {
		at = max(at, t.opened.Add(t.cfg.MinBackoff))
	}
	return at, ok
}

// RemoveWorker removes w's feed after the worker was removed. It reports whether w was known. The caller
// drops the worker's entries from the index, with its hidden state.
func (t *Tracker) Forget(w kv.Worker) bool {
	at, known := t.find(w)
	if known {
		t.feeds = slices.Delete(t.feeds, at, at+1)
	}
	return known
}

// canReach reports whether requests can be sent to the worker of f.
func (t *Tracker) reaches(f *follower) bool { return t.cfg.Reach == nil || t.cfg.Reach(f.worker) }

// KeepWorkers removes all workers for which keep is false, as RemoveWorker does.
func (t *Tracker) Keep(keep func(kv.Worker) bool) {
	t.feeds = slices.DeleteFunc(t.feeds, func(f follower) bool { return !keep(f.worker) })
}

// withRequest returns a verdict with the request which may be sent at now, if there is one, and counts it as
// sent.
func (t *Tracker) request(now kv.Mono, f *follower, o Outcome) Verdict {
	v := Verdict{Outcome: o}
	q := Request{Worker: f.worker, Epoch: f.epoch}
	p := &f.whole
	if f.state == Repair {
		p, q.From = &f.repair, f.next
	}
	if t.sent > 0 && now.Sub(t.opened) >= t.cfg.MinBackoff {
		t.sent = 0
	}
	if t.held || t.sent >= t.cfg.Asks || !t.reaches(f) || !p.ask(now, &t.cfg) {
		return v
	}
	if t.sent == 0 {
		t.opened = now
	}
	t.sent++
	if f.state == Repair && !f.wanted {
		f.wanted, f.moved = true, now
	}
	f.health.Resyncs++
	v.Resync, v.Request = true, q
	return v
}

// requestBackoff spaces the requests to one worker.
type pacing struct {
	// asked is when the last request was sent, wait how long the next one waits from then; before the first,
	// asked is the time of creation and wait 0.
	asked kv.Mono
	wait  time.Duration
}

func (p *pacing) due() kv.Mono { return p.asked.Add(p.wait) }

// allowRequest reports whether a request may be sent at now, and if so records it.
func (p *pacing) ask(now kv.Mono, cfg *Config) bool {
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
func (p *pacing) progress(now kv.Mono, cfg *Config) {
	if p.wait > 0 {
		p.asked, p.wait = now, cfg.MinBackoff
	}
}
