package kvfeed

import "penstock/core/kv"

// PublishReport is what a worker reports about its feed outside the feed, in its load reports.
type PublishReport struct {
	Epoch uint64 // the reporting epoch; 0 reports nothing
	Next  uint64 // number after the last event which the event plane acknowledged
	// Attempted is the number after the last event which the worker has passed to the event plane. Events
	// from Next to before Attempted may have arrived: an acknowledgement can be lost, and publishing them
	// again takes as long as the plane is away. A value below Next, as from a worker which does not report
	// it, means Next.
	Attempted uint64
	At        kv.Mono // when it was received
}

// Finding is the result of comparing a report with the feed.
type Finding uint8

// The findings.
const (
	// Agrees: there is no difference which delays do not explain.
	Agrees Finding = iota
	// TailLost: the feed stands still at an earlier event than the worker has published. No later event
	// reveals that while the worker is idle.
	TailLost
	// ForeignEvents: events arrived which the worker, by a report of long after their arrival, has not even
	// tried to publish. Another process used its name, and its sequence numbers would make the true events
	// look like old ones. (This does not detect a forgery of the very next numbers: the event plane controls
	// which processes may publish.)
	ForeignEvents
)

// reportState compares a feed with its worker's reports, as of the last comparison.
type reportState struct {
	lagging      bool    // the worker has published more than has arrived
	lagSince     kv.Mono // since when
	stillSince   kv.Mono // since when next has been the awaited number
	next         uint64
	reportedNext uint64 // next number by the last report

	leading   bool    // more has arrived than the worker reports
	leadSince kv.Mono // since when
	leadNext  uint64  // number after the last event at that time
}

// CompareReport compares the last report of a worker with its feed; call it regularly. Events and reports
// arrive by different ways, so only a difference which lasts for [Config.StuckAfter] is a finding. The feed
// is then repaired or resynchronized, as the verdict says.
func (t *Tracker) CompareReport(now kv.Mono, w kv.Worker, c PublishReport) (Finding, FeedVerdict) {
	at, known := t.findFeed(w)
	if !known {
		return Agrees, FeedVerdict{}
	}
	f := &t.feeds[at]
	switch {
	case t.isTailLost(now, f, c):
		return TailLost, t.acceptArrival(now, &arrival{Span: Span{Worker: w, Epoch: c.Epoch, First: c.Next}})
	case t.hasForeignEvents(now, f, c):
		return ForeignEvents, t.RejectForeign(now, w, c.attemptedNext())
	}
	return Agrees, FeedVerdict{}
}

// attemptedNext returns the number after the last event which may have arrived.
func (c *PublishReport) attemptedNext() uint64 { return max(c.Next, c.Attempted) }

func (t *Tracker) isTailLost(now kv.Mono, f *workerFeed, c PublishReport) bool {
	p := &f.reports
	switch {
	case c.Epoch != f.epoch || f.state != Live || c.Next <= f.next:
		p.lagging = false
		return false
	case !p.lagging:
		p.lagging, p.lagSince, p.stillSince, p.next, p.reportedNext = true, now, now, f.next, c.Next
		return false
	}
	p.reportedNext = c.Next
	switch {
	case p.next != f.next: // the feed advances
		p.stillSince, p.next = now, f.next
		return false
	case now.Sub(p.stillSince) < t.cfg.StuckAfter:
		return false
	}
	p.lagging = false
	return true
}

// hasForeignEvents is the mirror image of isTailLost. Reports are older than events, so the feed of a busy
// worker is always slightly ahead of them.
func (t *Tracker) hasForeignEvents(now kv.Mono, f *workerFeed, c PublishReport) bool {
	p := &f.reports
	switch {
	case c.Epoch != f.epoch || c.attemptedNext() >= f.seen:
		p.leading = false
		return false
	case !p.leading || c.attemptedNext() >= p.leadNext:
		p.leading, p.leadSince, p.leadNext = true, now, f.seen
		return false
	case c.At.Sub(p.leadSince) < t.cfg.StuckAfter:
		return false
	}
	p.leading = false
	return true
}
