package feed

import "penstock/core/kv"

// Claim is what a worker says of its feed, apart from the feed: reports of its load
// have it.
type Claim struct {
	Epoch uint64 // of the life that says it; 0 says nothing
	Next  uint64 // the number after the last event which the event plane acknowledged
	// Attempted is the number after the last event which the worker has given to the event
	// plane. Events from Next to before Attempted may have arrived: an acknowledgement
	// can be lost, and publishing them again takes as long as the plane is away. A value
	// below Next, as from a worker which does not say it, means Next.
	Attempted uint64
	At        kv.Mono // when it was heard
}

// Finding is what a comparison of a claim with the feed shows.
type Finding uint8

// The findings.
const (
	// Agrees: there is nothing that time does not explain.
	Agrees Finding = iota
	// EndLost: the feed stands still behind what the worker has published. No later
	// event shows that while the worker is idle.
	EndLost
	// Foreign: events came that the worker, by a claim of long after their arrival, has
	// not even tried to publish. Somebody else used its name, and the numbers up to theirs would
	// make the true events look like old ones. (A forgery of the very next numbers is
	// not found so: who may publish at all is the event plane's affair.)
	Foreign
)

// pace is how a feed stood to its worker's claims at the last comparison.
type pace struct {
	lagging    bool    // the worker has published more than has arrived
	behind     kv.Mono // since when
	stillSince kv.Mono // since when it is next that is waited for
	next       uint64
	claimed    uint64 // by the last claim, the number that comes next

	leading bool    // more has arrived than the worker says it has published
	ahead   kv.Mono // since when
	top     uint64  // the number after the last event then
}

// Compare holds the last claim of a worker against its feed; it is called every now and
// then. Events and claims come by different ways, so only what lasts for [Config.Stuck] is
// a finding. The worker is in doubt then, and the verdict says what to do.
func (t *Tracker) Compare(now kv.Mono, w kv.Worker, c Claim) (Finding, Verdict) {
	at, known := t.find(w)
	if !known {
		return Agrees, Verdict{}
	}
	f := &t.feeds[at]
	switch {
	case t.endLost(now, f, c):
		return EndLost, t.Accept(now, &Record{Worker: w, Epoch: c.Epoch, First: c.Next})
	case t.foreign(now, f, c):
		return Foreign, t.Disown(now, w, c.attempted())
	}
	return Agrees, Verdict{}
}

// attempted returns the number after the last event which may have arrived.
func (c *Claim) attempted() uint64 { return max(c.Next, c.Attempted) }

func (t *Tracker) endLost(now kv.Mono, f *follower, c Claim) bool {
	p := &f.pace
	switch {
	case c.Epoch != f.epoch || f.state != Live || c.Next <= f.next:
		p.lagging = false
		return false
	case !p.lagging:
		p.lagging, p.behind, p.stillSince, p.next, p.claimed = true, now, now, f.next, c.Next
		return false
	}
	p.claimed = c.Next
	switch {
	case p.next != f.next: // it moves
		p.stillSince, p.next = now, f.next
		return false
	case now.Sub(p.stillSince) < t.cfg.Stuck:
		return false
	}
	p.lagging = false
	return true
}

// foreign is the mirror of endLost. Claims are older than events, so the feed of a
// busy worker is ahead of them by a little all the time.
func (t *Tracker) foreign(now kv.Mono, f *follower, c Claim) bool {
	p := &f.pace
	switch {
	case c.Epoch != f.epoch || c.attempted() >= f.seen:
		p.leading = false
		return false
	case !p.leading || c.attempted() >= p.top:
		p.leading, p.ahead, p.top = true, now, f.seen
		return false
	case c.At.Sub(p.ahead) < t.cfg.Stuck:
		return false
	}
	p.leading = false
	return true
}
