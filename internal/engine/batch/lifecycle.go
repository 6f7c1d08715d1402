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
		r.out.markAccepted()
		if err := l.addChoice(r.open[0]); err != nil {
			l.failRequest(r, err)
		}
	}
}

// addChoice adds a choice to the scheduler.
func (l *loop) addChoice(c *choiceSequence) error {
	l.lastID++
	err := l.sched.AddSequence(paged.Sequence{
		ID:     l.lastID,
		Salt:   c.request.req.Salt,
		Tokens: c.allTokens(),
		Prompt: len(c.request.req.Prompt),
		Media:  c.request.req.Media,
		Reuse:  c.request.reuse,
	})
	if err != nil {
		return err
	}
	c.id, c.scheduled = l.lastID, true
	l.scheduled[c.id] = c
	return nil
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
		l.sched.RemoveSequence(c.id)
		delete(l.scheduled, c.id)
	}
}

// finishRequest removes a request from the loop. publishReport informs its caller.
func (l *loop) finishRequest(r *request, err error) {
	r.finished = true
	l.ended = append(l.ended, finishedRequest{r, err})
	i := slices.Index(l.taken, r)
	l.taken = slices.Delete(l.taken, i, i+1)
}
