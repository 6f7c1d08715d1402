package rpc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
)

// Ten thousand calls at once, all of them begun before any may end, are one
// connection.
func TestTCPTenThousandStreamsOnOneConnection(t *testing.T) {
	const calls = 10_000
	p, dialled := planeCounting(t, TCPConfig{})
	var begun sync.WaitGroup
	begun.Add(calls)
	s := startServing(t, p, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		begun.Done()
		begun.Wait()
		for i := range 3 {
			if err := send(fmt.Appendf(nil, "%s/%d", body, i)); err != nil {
				return err
			}
		}
		return nil
	})
	var callers sync.WaitGroup
	var failed atomic.Int64
	for i := range calls {
		callers.Go(func() {
			n := 0
			err := p.Call(t.Context(), s.addr, "m", fmt.Appendf(nil, "%d", i), func(f []byte) error {
				if want := fmt.Sprintf("%d/%d", i, n); string(f) != want {
					t.Errorf("call %d: frame %q, want %q", i, f, want)
				}
				n++
				return nil
			})
			if (err != nil || n != 3) && failed.Add(1) == 1 {
				t.Errorf("call %d: %d frames, %v", i, n, err)
			}
		})
	}
	callers.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d calls of %d failed", n, calls)
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// A body as long as may be does not hold up the tokens of others: while it is on
// its way they go on, each answered by a call.
func TestTCPLargeBodyWhileOthersStream(t *testing.T) {
	p, dialled := planeCounting(t, TCPConfig{})
	body := make([]byte, MaxBody)
	for i := 0; i < len(body); i += 8 {
		binary.LittleEndian.PutUint64(body[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	sum := sha256.Sum256(body)
	arrived := make(chan struct{})
	s := startServing(t, p, "", func(ctx context.Context, method string, body []byte, send func([]byte) error) error {
		switch method {
		case "large":
			if sha256.Sum256(body) != sum {
				return fault.New(fault.Internal, "the body of %d bytes is not the one that was sent", len(body))
			}
			close(arrived)
			return nil
		case "stream":
			for {
				select {
				case <-arrived:
					return nil
				default:
				}
				if err := send([]byte("token")); err != nil {
					return err
				}
			}
		}
		return nil
	})
	var streams sync.WaitGroup
	var tokens, before atomic.Int64
	for range 4 {
		streams.Go(func() {
			if err := p.Call(t.Context(), s.addr, "stream", nil, func([]byte) error { tokens.Add(1); return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	for tokens.Load() < 100 {
		runtime.Gosched()
	}
	before.Store(tokens.Load())
	calls := 0
	large := make(chan error, 1)
	go func() { large <- p.Call(t.Context(), s.addr, "large", body, discard) }()
	for done := false; !done; {
		select {
		case err := <-large:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default: // small calls pass the large one by
			if err := p.Call(t.Context(), s.addr, "ping", nil, discard); err != nil {
				t.Fatal(err)
			}
			calls++
		}
	}
	streams.Wait()
	// 1024 turns of the writer carry the body; a call takes a few.
	if calls < 10 {
		t.Errorf("%d calls were answered while the body was on its way", calls)
	}
	if got := tokens.Load() - before.Load(); got < 1000 {
		t.Errorf("%d tokens came while the body was on its way", got)
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// A caller which does not take its frames blocks only its own handler, and its queue is bounded.
func TestTCPSlowCallersStopOnlyThemselves(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{})
	const slow = 50
	var sent [slow]atomic.Int64
	s := startServing(t, p, "", func(_ context.Context, method string, body []byte, send func([]byte) error) error {
		frame := make([]byte, 32<<10)
		for range 200 {
			if err := send(frame); err != nil {
				return err
			}
			if method == "slow" {
				sent[body[0]].Add(1)
			}
		}
		return nil
	})
	var standing, callers sync.WaitGroup
	standing.Add(slow)
	leave := make(chan struct{})
	for i := range slow {
		callers.Go(func() {
			n := 0
			err := p.Call(t.Context(), s.addr, "slow", []byte{byte(i)}, func([]byte) error {
				if n++; n == 1 {
					standing.Done()
					<-leave
				}
				return nil
			})
			if err != nil || n != 200 {
				t.Errorf("slow call %d: %d frames, %v", i, n, err)
			}
		})
	}
	standing.Wait()
	for range 5 { // of 6.4 MB each
		n := 0
		if err := p.Call(t.Context(), s.addr, "fast", nil, func([]byte) error { n++; return nil }); err != nil || n != 200 {
			t.Errorf("%d frames, %v", n, err)
		}
	}
	for i := range sent {
		// The window, the frame that goes beyond it, and one in the hand.
		if n := sent[i].Load(); n > tcpWindow/(32<<10)+1 {
			t.Errorf("handler %d is %d frames of 32 KiB ahead", i, n)
		}
	}
	close(leave)
	callers.Wait()
}

func TestTCPFramesDoNotAllocate(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{})
	frames := 1
	s := startServing(t, p, "", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		frame := make([]byte, 200)
		for range frames {
			if err := send(frame); err != nil {
				return err
			}
		}
		return nil
	})
	call := func() {
		if err := p.Call(t.Context(), s.addr, "m", nil, discard); err != nil {
			t.Fatal(err)
		}
	}
	frames = 10_000
	call() // the buffers of the connection grow
	frames = 1
	one := testing.AllocsPerRun(20, call)
	frames = 10_000
	many := testing.AllocsPerRun(20, call)
	// The two queues of a call grow as others come to be filled: in a handful of steps.
	// The runtime allocates for goroutines that wait, much less often than they do.
	if many > one+20+float64(frames/100) {
		t.Errorf("a call of %d frames allocates %v times, one of a single frame %v", frames, many, one)
	}
}

// Many bodies which never complete cannot exhaust the memory of the server: there is a bound per
// connection, and one for all.
func TestTCPHalfSentBodiesAreBounded(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{ConnBodies: 4 * MaxBody, Bodies: 6 * MaxBody})
	entered := make(chan int, 16)
	s := startServing(t, p, "", func(ctx context.Context, _ string, body []byte, _ func([]byte) error) error {
		entered <- len(body)
		return nil
	})
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before := m.TotalAlloc
	for conn, fit := range []int{4, 2} {
		raw := newRawClient(t, s.addr)
		for id := range uint32(5) {
			raw.call(id+1, &callHeader{size: MaxBody, method: "m"}, []byte("only this"))
		}
		raw.ping(1)
		overloaded := 0
		raw.until(framePong, func(typ frameType, _ uint32, payload []byte) {
			if f, err := decodeEnd(payload); typ == frameEnd && err == nil && f.Code == fault.Overloaded {
				overloaded++
			}
		})
		if overloaded != 5-fit {
			t.Errorf("connection %d: %d of 5 calls were refused, want %d", conn, overloaded, 5-fit)
		}
	}
	runtime.ReadMemStats(&m)
	if grew := m.TotalAlloc - before; grew > 8<<20 {
		t.Errorf("11 announced bodies of which 99 bytes came took %d MiB", grew>>20)
	}
	select {
	case n := <-entered:
		t.Errorf("a handler got %d bytes of a body that did not arrive", n)
	default:
	}
}

// A cancelled call gives back what its body took, though most of it never came.
func TestTCPCancelledBodiesGiveBackTheirRoom(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{ConnBodies: MaxBody, Bodies: MaxBody})
	s := startServing(t, p, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		return send(fmt.Append(nil, len(body)))
	})
	raw := newRawClient(t, s.addr)
	for id := uint32(1); id < 20; id += 2 {
		raw.call(id, &callHeader{size: MaxBody, method: "m"}, nil)
		raw.frame(frameBody, id, make([]byte, tcpPayload))
		raw.frame(frameCancel, id, nil)
		raw.call(id+1, &callHeader{size: 3, method: "m"}, []byte("abc"))
		answer := ""
		raw.until(frameEnd, func(typ frameType, at uint32, payload []byte) {
			if at == id+1 {
				answer += fmt.Sprintf("%d:%s ", typ, payload)
			}
		})
		if want := fmt.Sprintf("%d:3 %d: ", frameData, frameEnd); answer != want {
			t.Fatalf("after %d cancelled bodies the answer is %q, want %q", (id+1)/2, answer, want)
		}
	}
}

func TestTCPCallsOfAConnectionAreBounded(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{Calls: 3})
	var in sync.WaitGroup
	in.Add(3)
	leave := make(chan struct{})
	s := startServing(t, p, "", func(context.Context, string, []byte, func([]byte) error) error {
		in.Done()
		<-leave
		return nil
	})
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			if err := p.Call(t.Context(), s.addr, "m", nil, discard); err != nil {
				t.Error(err)
			}
		})
	}
	in.Wait()
	if err := p.Call(t.Context(), s.addr, "m", nil, discard); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("the fourth of three: %v, want Overloaded", err)
	}
	close(leave)
	callers.Wait()
}

// A handler has its place until it returns: a client that calls and cancels, over
// and over, has no more of them at work than one that waits.
func TestTCPCancelledCallsKeepTheirPlaces(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{Calls: 3})
	var entered atomic.Int32
	leave := make(chan struct{})
	s := startServing(t, p, "", func(context.Context, string, []byte, func([]byte) error) error {
		entered.Add(1)
		<-leave // it is slow to notice
		return nil
	})
	raw := newRawClient(t, s.addr)
	const calls = 50
	refused := 0
	for id := range uint32(calls) {
		raw.call(id+1, &callHeader{method: "m"}, nil)
		raw.frame(frameCancel, id+1, nil)
	}
	raw.ping(1)
	raw.until(framePong, func(typ frameType, _ uint32, payload []byte) {
		if f, err := decodeEnd(payload); typ == frameEnd && err == nil && f.Code == fault.Overloaded {
			refused++
		}
	})
	close(leave)
	raw.conn.Close() // otherwise the server waits until its client closes
	s.stop()
	if n := entered.Load(); n != 3 || refused != calls-3 {
		t.Errorf("of %d calls, each cancelled at once, %d handlers were at work and %d calls refused; want 3 and %d", calls, n, refused, calls-3)
	}
}

func TestTCPConnectionsAreBounded(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{Conns: 1})
	s := startServing(t, p, "", func(context.Context, string, []byte, func([]byte) error) error { return nil })
	newRawClient(t, s.addr)
	if err := p.Call(t.Context(), s.addr, "m", nil, discard); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("the second of one connection: %v, want Unavailable", err)
	}
}

// What callers leave untaken on a connection is bounded: the call that takes too
// much ends, the others go on.
func TestTCPUntakenAnswersAreBounded(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{Answers: 20 << 20})
	const calls = 4 // room for two large frames
	var standing, sent, callers sync.WaitGroup
	standing.Add(calls)
	sent.Add(calls)
	s := startServing(t, p, "", func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
		if method == "ping" {
			return nil
		}
		defer sent.Done()
		if err := send([]byte("small")); err != nil {
			return err
		}
		return send(make([]byte, MaxFrame))
	})
	leave := make(chan struct{})
	var overloaded, whole atomic.Int64
	for range calls {
		callers.Go(func() {
			err := p.Call(t.Context(), s.addr, "m", nil, func(f []byte) error {
				if len(f) < MaxFrame {
					standing.Done()
					<-leave
				}
				return nil
			})
			switch {
			case err == nil:
				whole.Add(1)
			case fault.CodeOf(err) == fault.Overloaded:
				overloaded.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	standing.Wait()
	sent.Wait()
	// The answer of a call comes after all that was sent before.
	if err := p.Call(t.Context(), s.addr, "ping", nil, discard); err != nil {
		t.Error(err)
	}
	close(leave)
	callers.Wait()
	if overloaded.Load() != 2 || whole.Load() != 2 {
		t.Errorf("%d calls ended for want of room and %d were answered, want 2 and 2", overloaded.Load(), whole.Load())
	}
	if used := p.mu.peers[s.addr].link.answerBudget.used.Load(); used != 0 {
		t.Errorf("%d bytes are still counted when all calls are over", used)
	}
}

// rawClient is a client of a test's own making, or a server. Without t a write
// that fails is not told.
type rawClient struct {
	t    *testing.T
	conn net.Conn
}

func newRawClient(t *testing.T, addr string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", trimTCPScheme(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(encodeGreeting(&hello{minVersion: 1, maxVersion: 1, frames: Credit, bytes: tcpWindow})); err != nil {
		t.Fatal(err)
	}
	if _, err := readGreeting(conn); err != nil {
		t.Fatal(err)
	}
	return &rawClient{t: t, conn: conn}
}

func (c *rawClient) frame(typ frameType, id uint32, payload []byte) {
	_, err := c.conn.Write(append(appendFrameHeader(nil, typ, id, len(payload)), payload...))
	if err != nil && c.t != nil {
		c.t.Helper()
		c.t.Fatal(err)
	}
}

func (c *rawClient) call(id uint32, h *callHeader, part []byte) {
	c.frame(frameCall, id, append(appendCallHead(nil, h), part...))
}

func (c *rawClient) ping(n byte) {
	c.frame(framePing, 0, bytes.Repeat([]byte{n}, pingSize))
}

// until passes frames on up to the first of the given type.
func (c *rawClient) until(last frameType, see func(typ frameType, id uint32, payload []byte)) {
	c.t.Helper()
	for {
		typ, id, payload, err := c.next()
		if err != nil {
			c.t.Fatal(err)
		}
		see(typ, id, payload)
		if typ == last {
			return
		}
	}
}

func (c *rawClient) next() (frameType, uint32, []byte, error) {
	head := make([]byte, tcpHeader)
	if _, err := io.ReadFull(c.conn, head); err != nil {
		return 0, 0, nil, err
	}
	typ, id, n := decodeFrameHeader(head)
	payload := make([]byte, n)
	_, err := io.ReadFull(c.conn, payload)
	return typ, id, payload, err
}
