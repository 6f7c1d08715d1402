package zmtp

import (
	"context"
	"net"
	"sync"
	"time"
)

// lifetime is the goroutine behind a socket that a constructor made: it ends with
// Close.
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

// begin runs f, which returns soon after its context ends. It is called once.
func (t *lifetime) begin(ctx context.Context, f func(context.Context)) {
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

// end closes the socket. drain has the outboxes closed once they are empty, and
// says how many there are; they have as long as linger. Whoever calls it waits.
func (t *lifetime) end(linger time.Duration, drain func() int) {
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
