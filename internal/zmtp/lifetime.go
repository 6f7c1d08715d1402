package zmtp

import (
	"context"
	"net"
	"sync"
	"time"
)

// lifetime is the goroutine of a socket, which ends with Close.
type lifetime struct {
	closing chan struct{} // closed when Close was called
	once    sync.Once
	ln      net.Listener // nil if the socket dials
	cancel  context.CancelFunc
	done    chan struct{}
}

func newLifetime(ln net.Listener) *lifetime {
	return &lifetime{closing: make(chan struct{}), ln: ln, done: make(chan struct{})}
}

// start runs f, which must return soon after its context ends. It is called once.
func (t *lifetime) start(ctx context.Context, f func(context.Context)) {
	ctx, t.cancel = context.WithCancel(ctx)
	if t.ln != nil {
		context.AfterFunc(ctx, func() { _ = t.ln.Close() })
	}
	go func() {
		defer close(t.done)
		f(ctx)
	}()
}

func (t *lifetime) isClosing() bool {
	select {
	case <-t.closing:
		return true
	default:
		return false
	}
}

// shutdown closes the socket. drain must close the outboxes for when they are empty, and return
// their number; they have up to linger to empty. All callers wait for the end.
func (t *lifetime) shutdown(linger time.Duration, drain func() int) {
	t.once.Do(func() {
		close(t.closing)
		if t.ln != nil {
			_ = t.ln.Close()
		}
		if drain() > 0 && linger > 0 {
			wait := time.NewTimer(linger)
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-t.done:
			}
		}
		t.cancel()
	})
	<-t.done
}
