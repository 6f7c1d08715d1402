package batch

import (
	"context"
	"slices"

	"penstock/core/paged"
)

// takeAborts releases the requests that their callers aborted.
func (l *loop) takeAborts() {
	l.mu.Lock()
	aborts := l.mu.aborts
	l.mu.aborts = nil
	l.mu.Unlock()
	for _, r := range aborts {
		if !r.finished {
			l.failRequest(r, context.Canceled) // never read
		}
	}
	if len(aborts) > 0 {
		l.publishReport() // their callers wait: do not delay them by a step
	}
}

// takeInbox starts the new requests.
func (l *loop) takeInbox() {
	l.mu.Lock()
	inbox := l.mu.inbox
	l.mu.inbox = nil
	l.mu.Unlock()
	l.taken = append(l.taken, inbox...)
	for _, r := range inbox {
		if r.imp != nil {
			l.startImport(r)
		}
		if l.media == nil || len(r.req.Media) == 0 {
			l.acceptRequest(r)
		}
		if err := l.addChoice(r.open[0]); err != nil {
			l.failRequest(r, err)
		}
	}
}

func (l *loop) acceptRequest(r *request) {
	r.accepted = true
	r.out.markAccepted()
}

// acceptEncoded accepts the request of c if all is encoded which c needs. What is cached may be evicted until c has its
// blocks.
func (l *loop) acceptEncoded(c *choiceSequence) {
	if !c.request.accepted && c.transferEnd == 0 && (c.reserved || len(c.unfinished) == 0) && !c.awaitsEncoding() {
		l.acceptRequest(c.request)
	}
}

// awaitsEncoding reports whether a range is not encoded which c needs.
func (c *choiceSequence) awaitsEncoding() bool {
	return slices.ContainsFunc(c.unfinished, func(r paged.TokenRange) bool { return r.End > c.ready })
}

// addChoice adds a choice to the scheduler.
func (l *loop) addChoice(c *choiceSequence) error {
	l.lastID++
	seq := c.sequence()
	seq.ID = l.lastID
	if l.media != nil && len(seq.Media) > 0 {
		seq.Unfinished, seq.Reopens = l.media.UnfinishedRanges(c.state), l.discards != nil
	}
	seq.Hold, seq.TransferEnd = c.request.held != nil, c.transferEnd
	seq.LateTransfer = c.request.imp != nil && c.request.imp.watcher == nil
	if err := l.sched.AddSequence(seq); err != nil {
		return err
	}
	c.id, c.scheduled = l.lastID, true
	l.scheduled[c.id] = c
	c.unfinished = seq.Unfinished
	if len(seq.Unfinished) > 0 {
		l.startEncoding(c, l.sched.CachedPrefix(seq))
		return nil
	}
	l.acceptEncoded(c)
	return nil
}

// startEncoding encodes what c needs if its first ready tokens are there, and tokens which are to be imported will be.
func (l *loop) startEncoding(c *choiceSequence, ready int) {
	c.ready = max(ready, c.transferEnd)
	l.media.StartEncoding(c.id, c.state, c.ready)
}

// takeEncoded finishes the ranges which have been encoded, and reports whether there were any.
func (l *loop) takeEncoded() bool {
	if l.media == nil {
		return false
	}
	l.ranges = l.media.AppendEncoded(l.ranges[:0])
	for _, r := range l.ranges {
		if l.sched.FinishRange(r) {
			l.encoded.Add(1)
		}
		if c := l.scheduled[r.Seq]; c != nil && r.Index >= 0 && r.Index < len(c.unfinished) {
			c.unfinished[r.Index] = paged.TokenRange{}
			l.acceptEncoded(c)
		}
	}
	return len(l.ranges) > 0
}

// failUnencoded ends the requests whose media cannot be encoded. They must not be in a plan.
func (l *loop) failUnencoded() {
	if l.discards == nil {
		return
	}
	l.failed = l.discards.AppendFailed(l.failed[:0])
	for _, f := range l.failed {
		if c := l.scheduled[f.ID]; c != nil {
			l.failRequest(c.request, f.Err)
		}
	}
	clear(l.failed)
}

// restartEncoding encodes again what the sequences need which the plan has preempted, as far as it was given up, and
// what those need which were passed over: a sequence must not hold what is encoded of some objects while it waits, if it
// cannot be admitted without others. What is being encoded for a sequence without blocks goes on to its end.
func (l *loop) restartEncoding() {
	if l.discards == nil {
		return
	}
	for _, id := range l.plan.Preempted {
		if c := l.scheduled[id]; c != nil && len(c.unfinished) > 0 {
			awaits := c.awaitsEncoding()
			c.reserved, c.unfinished = false, l.media.UnfinishedRanges(c.state)
			if !awaits {
				l.encodeAgain(c, l.sched.CachedTokens(id))
			}
		}
	}
	for _, p := range l.plan.PassedOver {
		if c := l.scheduled[p.ID]; c != nil && p.Ready < c.ready && !c.awaitsEncoding() && l.sched.ReopenRanges(p.ID) {
			c.unfinished = l.media.UnfinishedRanges(c.state)
			l.encodeAgain(c, p.Ready)
		}
	}
}

// encodeAgain encodes what c needs, whose ranges are all unfinished again, if its first ready tokens are there.
func (l *loop) encodeAgain(c *choiceSequence, ready int) {
	c.ready = ready
	l.discards.RestartEncoding(c.id, c.state, ready)
}

// startReserved encodes what the sequences need which the plan has admitted: blocks which were cached when a sequence
// was added may be gone, and others may have come.
func (l *loop) startReserved() {
	for _, r := range l.plan.Reserved {
		if c := l.scheduled[r.ID]; c != nil {
			c.reserved = true
			l.reportReserved(c, r.Ready)
			if len(c.unfinished) > 0 {
				l.startEncoding(c, r.Ready)
			}
			l.acceptEncoded(c)
		}
	}
}

// startFollowers starts the choices that waited until the first choice had computed their common prompt.
func (l *loop) startFollowers(r *request) {
	r.followersStarted = true
	for _, c := range r.open {
		if c.scheduled {
			continue
		}
		if err := l.addChoice(c); err != nil {
			l.failRequest(r, err)
			return
		}
	}
}

// completeChoice ends one choice; with the last one the request ends.
func (l *loop) completeChoice(c *choiceSequence) {
	r := c.request
	l.removeChoice(c)
	r.open = slices.DeleteFunc(r.open, func(o *choiceSequence) bool { return o == c })
	l.freed++
	if len(r.open) == 0 {
		l.finishRequest(r, nil)
	}
}

// failRequest ends a request with all of its choices because of err.
func (l *loop) failRequest(r *request, err error) {
	for _, c := range r.open {
		l.removeChoice(c)
	}
	l.freed += len(r.open)
	r.open = nil
	l.finishRequest(r, err)
}

func (l *loop) removeChoice(c *choiceSequence) {
	if c.scheduled {
		c.closeImport()
		l.sched.RemoveSequence(c.id)
		delete(l.scheduled, c.id)
		if len(c.unfinished) > 0 {
			l.media.StopEncoding(c.id)
		}
	}
}

// finishRequest removes a request from the loop. publishReport informs its caller.
func (l *loop) finishRequest(r *request, err error) {
	r.finished = true
	if err == nil {
		r.out.markAccepted() // it may have ended within the step that admitted it
	}
	l.ended = append(l.ended, finishedRequest{r, err})
	i := slices.Index(l.taken, r)
	l.taken = slices.Delete(l.taken, i, i+1)
}
