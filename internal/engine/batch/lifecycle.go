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
		if !r.over {
			l.fail(r, context.Canceled) // never read
		}
	}
	if len(aborts) > 0 {
		l.report() // their callers wait: do not delay them by a step
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
		r.out.accept()
		if err := l.add(r.open[0]); err != nil {
			l.fail(r, err)
		}
	}
}

// addChoice adds a choice to the scheduler.
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

// startFollowers starts the choices that waited until the first choice had computed their common prompt.
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

// completeChoice ends one choice; with the last one the request ends.
func (l *loop) complete(c *choice) {
	r := c.request
	l.remove(c)
	r.open = slices.DeleteFunc(r.open, func(o *choice) bool { return o == c })
	l.freed++
	if len(r.open) == 0 {
		l.leave(r, nil)
	}
}

// failRequest ends a request with all of its choices because of err.
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

// finishRequest removes a request from the loop. publishReport informs its caller.
func (l *loop) leave(r *request, err error) {
	r.over = true
	l.ended = append(l.ended, ending{r, err})
	i := slices.Index(l.taken, r)
	l.taken = slices.Delete(l.taken, i, i+1)
}
