package feed

import (
	"slices"
	"time"

	"penstock/core/kv"
)

// Expect tells the tracker of a worker of which no record may have arrived: one
// that was discovered, and whose events the event plane may have dropped by age.
// If nothing is known of that epoch all of its events are wanted, and [Tracker.Due]
// names it. Call it once the event plane has delivered what it kept. The verdict
// says whether entries of an earlier life must leave the index.
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

// Suspect tells the tracker that events of w may be missing though no record shows it:
// the event plane lost some of somebody's. The worker is asked what comes next, and if
// that is nothing a record without events ends the doubt. Of a worker that is not known
// or not live there is nothing to do.
func (t *Tracker) Suspect(now kv.Mono, w kv.Worker) Verdict {
	at, known := t.find(w)
	if !known || t.feeds[at].state != Live {
		return Verdict{}
	}
	return t.doubt(now, &t.feeds[at], Gap)
}

// Disown puts w in doubt because its feed is ahead of it: what was accepted under
// numbers from next on was not its own, though in its name. A Cleared event with
// the number next or a later one ends the doubt.
// Of a worker that is not known there is nothing to do.
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

// doubt begins the repair of a live feed.
func (t *Tracker) doubt(now kv.Mono, f *follower, o Outcome) Verdict {
	f.state, f.moved, f.wanted, f.hidden = Repair, now, false, true
	v := t.request(now, f, o)
	v.Hide = true
	return v
}

// Hold has nothing asked for, nor given up, until Release: what the event plane kept is still being
// delivered, and what is missing may be in it, or the description that somebody else had
// asked for.
func (t *Tracker) Hold() { t.held = true }

// Release ends Hold. What is missing by then is due.
func (t *Tracker) Release() { t.held = false }

// GiveUp appends to dst, in order, the workers whose repair has stood still for too
// long. They are in doubt from now on, their whole caches are wanted, and the caller drops
// their entries. It is called before Due.
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

// Due appends to dst, by worker, the requests that must be sent at now, and counts them as
// sent. Requests can be lost, so it is called again at the time that [Tracker.NextDue]
// gives.
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

// NextDue returns when there may be something to give up or to ask for next; ok is
// false if all feeds are live or out of reach, and between Hold and Release.
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

// Forget removes all that is known of w: it is gone. It reports whether w was
// known. The worker's entries in the index, and that it is hidden, are the caller's to
// drop.
func (t *Tracker) Forget(w kv.Worker) bool {
	at, known := t.find(w)
	if known {
		t.feeds = slices.Delete(t.feeds, at, at+1)
	}
	return known
}

// reaches reports whether the worker of f can be asked.
func (t *Tracker) reaches(f *follower) bool { return t.cfg.Reach == nil || t.cfg.Reach(f.worker) }

// Keep forgets all workers but those that keep names, as Forget does.
func (t *Tracker) Keep(keep func(kv.Worker) bool) {
	t.feeds = slices.DeleteFunc(t.feeds, func(f follower) bool { return !keep(f.worker) })
}

// request is a verdict with the request that may be sent at now, if there is one, which
// it notes.
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

// pacing spaces the requests to one worker.
type pacing struct {
	// asked is when the last request was sent, wait how long the next one waits
	// from then; before the first, the present and 0.
	asked kv.Mono
	wait  time.Duration
}

func (p *pacing) due() kv.Mono { return p.asked.Add(p.wait) }

// ask reports whether a request may be sent at now, and if so notes it.
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

// progress notes that an answer arrives: what is still missing when it stops coming is
// asked for after the shortest wait.
func (p *pacing) progress(now kv.Mono, cfg *Config) {
	if p.wait > 0 {
		p.asked, p.wait = now, cfg.MinBackoff
	}
}
