package batch

import (
	"context"
	"slices"

	"penstock/core/paged"
)

// takeAborts lets go of the requests that their callers gave up.
func (l *loop) takeAborts() {
	l.mu.Lock()
	aborts := l.mu.aborts
	l.mu.aborts = nil
	l.mu.Unlock()
	for _, r := range aborts {
		if !r.over {
			l.fail(r, context.Canceled) // nobody reads it
		}
	}
	if len(aborts) > 0 {
		l.report() // their callers wait; do not make them wait for a step
	}
}

// takeInbox starts the requests that came.
func (l *loop) takeInbox() {
	l.mu.Lock()
	inbox := l.mu.inbox
	l.mu.inbox = nil
	l.mu.Unlock()
	l.taken = append(l.taken, inbox...)
	for _, r := range inbox {
		r.out.accept()
		if err := l.add(r.open[0]); err != nil {
			l.fail(r, err)
		}
	}
}

// add hands a choice to the scheduler.
func (l *loop) add(c *choice) error {
	l.lastID++
	err := l.sched.Add(paged.Sequence{
		ID:     l.lastID,
		Salt:   c.request.req.Salt,
		Tokens: c.tokens(),
		Prompt: len(c.request.req.Prompt),
		Media:  c.request.req.Media,
		Reuse:  c.request.reuse,
	})
	if err != nil {
		return err
	}
	c.id, c.added = l.lastID, true
	l.live[c.id] = c
	return nil
}

// follow starts the choices that waited for the leader to compute the prompt
// that they share.
func (l *loop) follow(r *request) {
	r.led = true
	for _, c := range r.open {
		if c.added {
			continue
		}
		if err := l.add(c); err != nil {
			l.fail(r, err)
			return
		}
	}
}

// complete ends one choice; with the last one the request ends.
func (l *loop) complete(c *choice) {
	r := c.request
	l.remove(c)
	r.open = slices.DeleteFunc(r.open, func(o *choice) bool { return o == c })
	l.freed++
	if len(r.open) == 0 {
		l.leave(r, nil)
	}
}

// fail ends a request with all of its choices because of err.
func (l *loop) fail(r *request, err error) {
	for _, c := range r.open {
		l.remove(c)
	}
	l.freed += len(r.open)
	r.open = nil
	l.leave(r, err)
}

func (l *loop) remove(c *choice) {
	if c.added {
		l.sched.Remove(c.id)
		delete(l.live, c.id)
	}
}

// leave forgets a request. Its caller learns of it from report.
func (l *loop) leave(r *request, err error) {
	r.over = true
	l.ended = append(l.ended, ending{r, err})
	i := slices.Index(l.taken, r)
	l.taken = slices.Delete(l.taken, i, i+1)
}
