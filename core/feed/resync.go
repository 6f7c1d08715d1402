package feed

import (
	"slices"

	"penstock/core/kv"
)

// Expect tells the tracker of a worker of which no record may have arrived: one
// that was discovered, and whose events the event plane may have dropped by age.
// If nothing is known of that epoch the worker is in doubt, and [Tracker.Due]
// names it. Call it once the event plane has delivered what it kept. The answer
// says whether entries of an earlier life must leave the index.
func (t *Tracker) Expect(now kv.Mono, w kv.Worker, epoch uint64) (drop bool) {
	at, known := t.find(w)
	switch {
	case !known:
		t.feeds = slices.Insert(t.feeds, at, follower{worker: w, asked: now})
	case epoch <= t.feeds[at].epoch:
		return false
	}
	t.feeds[at].begin(epoch)
	return known
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
	f.state, f.next = Doubt, max(1, next)
	f.health.Gaps++
	return Verdict{Outcome: Gap, Drop: true, Resync: t.ask(now, f)}
}

// Due appends to dst, in order, the workers that must be asked for a resync at
// now, and counts them as asked. Requests can be lost, so it is called again at
// the time that [Tracker.NextDue] gives.
func (t *Tracker) Due(now kv.Mono, dst []kv.Worker) []kv.Worker {
	for i := range t.feeds {
		if f := &t.feeds[i]; f.state == Doubt && t.ask(now, f) {
			dst = append(dst, f.worker)
		}
	}
	return dst
}

// NextDue returns when the next resync may be asked for; ok is false if no
// worker is in doubt.
func (t *Tracker) NextDue() (at kv.Mono, ok bool) {
	for i := range t.feeds {
		f := &t.feeds[i]
		if f.state != Doubt {
			continue
		}
		if due := f.asked.Add(f.wait); !ok || due < at {
			at, ok = due, true
		}
	}
	return at, ok
}

// Forget removes all that is known of w: it is gone. It reports whether w was
// known. The worker's entries in the index are the caller's to drop.
func (t *Tracker) Forget(w kv.Worker) bool {
	at, known := t.find(w)
	if known {
		t.feeds = slices.Delete(t.feeds, at, at+1)
	}
	return known
}

// ask reports whether a resync may be asked for at now, and if so notes it.
func (t *Tracker) ask(now kv.Mono, f *follower) bool {
	since := now.Sub(f.asked)
	switch {
	case f.wait == 0:
		f.wait = t.cfg.MinBackoff
	case since < f.wait:
		return false
	case since < f.wait+t.cfg.MaxBackoff:
		f.wait = min(2*f.wait, t.cfg.MaxBackoff)
	default:
		f.wait = t.cfg.MinBackoff
	}
	f.asked = now
	f.health.Resyncs++
	return true
}
