package zmtp

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// patience bounds waits for what must happen. Only a failure reaches it, also on a slow machine.
const patience = 5 * time.Minute

// loopback is where tests listen.
func loopback(t testing.TB) Endpoint {
	t.Helper()
	return endpoint(t, "tcp://127.0.0.1:0")
}

func endpoint(t testing.TB, s string) Endpoint {
	t.Helper()
	ep, err := ParseEndpoint(s)
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// pipes is a listener whose connections exist in memory alone, for tests in
// virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// dial returns the other end of a connection that p accepts.
func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

// states collects what OnState hears.
type states chan ConnState

func newStates() states { return make(states, 1024) }

func (s states) tell(st ConnState) { s <- st }

// await returns the next state of a kind.
func (s states) await(t testing.TB, kind ConnStateKind) ConnState {
	t.Helper()
	for {
		select {
		case st := <-s:
			if st.Kind == kind {
				return st
			}
		case <-time.After(patience):
			t.Fatalf("no state %v", kind)
		}
	}
}

// received is what a subscription in the background gets.
type received struct {
	messages chan [][]byte
	done     chan error
	cancel   context.CancelFunc
}

// subscribe runs f, one of Subscribe and SubscribeListen, until the test ends.
func background(t testing.TB, f func(ctx context.Context, recv func([][]byte) error) error) *received {
	ctx, cancel := context.WithCancel(t.Context())
	r := &received{messages: make(chan [][]byte, 1<<16), done: make(chan error, 1), cancel: cancel}
	go func() {
		r.done <- f(ctx, func(frames [][]byte) error {
			r.messages <- cloneMessage(frames)
			return nil
		})
	}()
	t.Cleanup(func() { r.stop(t) })
	return r
}

// stop ends the subscription and expects that nothing else did.
func (r *received) stop(t testing.TB) {
	r.cancel()
	if err, ok := <-r.done; ok && !errors.Is(err, context.Canceled) {
		t.Errorf("the subscription ended with %v", err)
	}
	r.once()
}

func (r *received) once() {
	select {
	case <-r.done:
	default:
		close(r.done)
	}
}

func (r *received) next(t testing.TB) [][]byte {
	t.Helper()
	select {
	case m := <-r.messages:
		return m
	case <-time.After(patience):
		t.Fatal("no message")
		return nil
	}
}

// strs makes frames of strings.
func strs(s ...string) [][]byte {
	frames := make([][]byte, len(s))
	for i := range s {
		frames[i] = []byte(s[i])
	}
	return frames
}
