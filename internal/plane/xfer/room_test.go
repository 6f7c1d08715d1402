package xfer

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
)

// pipeOwner is an owner whose connections are pipes, on virtual time. A write to a pipe waits until it is read.
type pipeOwner struct {
	*owner
	t    *testing.T
	late bool // it writes to a lateConn
}

// lateConn writes after all that happens at the same time.
type lateConn struct{ net.Conn }

func (c lateConn) Write(p []byte) (int, error) {
	time.Sleep(time.Nanosecond) // virtual: deadlines of now pass
	return c.Conn.Write(p)
}

// newPipeOwner returns an owner which serves n connections. Its connections must be closed before the test ends.
func newPipeOwner(t *testing.T, n int) *pipeOwner {
	t.Helper()
	cfg := Config{Serve: n}
	cfg.EnsureDefaults()
	r := newRegistry(cfg.Transfers, cfg.Observer)
	r.addEndpoint(OwnerAddress{TCP, "test"})
	o := &pipeOwner{owner: newOwner(&cfg, r, TCP), t: t}
	t.Cleanup(o.conns.Wait)
	return o
}

// connect returns the writer's end of a connection which has not greeted.
func (o *pipeOwner) connect() *lane {
	o.t.Helper()
	near, far := net.Pipe()
	if o.late {
		far = lateConn{far}
	}
	l := o.addLane(far)
	o.conns.Go(func() { o.serveLane(context.Background(), l) })
	w := &lane{conn: near}
	if o.tls != nil {
		w.conn = tls.Client(near, &tls.Config{InsecureSkipVerify: true}) // virtual time is before the certificate's
	}
	w.in.r = w.conn
	o.t.Cleanup(w.close)
	return w
}

// connected returns the writer's end of a connection which has room.
func (o *pipeOwner) connected() *lane {
	o.t.Helper()
	w := o.connect()
	if err := w.greet(context.Background(), ""); err != nil {
		o.t.Fatal(err)
	}
	return w
}

// connectSecond returns the writer's end of a connection which waits for room, and how its greeting ends.
func (o *pipeOwner) connectSecond() (*lane, <-chan error) {
	w, greeted := o.connect(), make(chan error, 1)
	go func() { greeted <- w.greet(context.Background(), "") }()
	synctest.Wait()
	if o.waiting.Load() == 0 {
		o.t.Fatal("the connection does not wait for room")
	}
	return w, greeted
}

// begin returns the BEGIN of a transfer of one byte, and what follows it.
func (o *pipeOwner) begin() (begin, rest []byte) {
	o.t.Helper()
	tr, err := o.registry.Expect(Incoming{Into: [][]byte{make([]byte, 1)}})
	if err != nil {
		o.t.Fatal(err)
	}
	src := []byte{7}
	rest = append(appendChunk(nil, chunkHeader{size: 1, digest: digestBytes(src)}), src...)
	return appendBegin(nil, beginHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: 1}), appendEnd(rest, DigestOf(src), nil)
}

// write writes all of b to w.
func (o *pipeOwner) write(w *lane, b ...[]byte) {
	o.t.Helper()
	if _, err := w.conn.Write(bytes.Join(b, nil)); err != nil {
		o.t.Fatal(err)
	}
}

// wantFrame reads a frame of type want from w.
func (o *pipeOwner) wantFrame(w *lane, want frameType) {
	o.t.Helper()
	_ = w.conn.SetReadDeadline(time.Now().Add(time.Hour))
	if got, _, err := w.in.next(); err != nil || got != want {
		o.t.Fatalf("a frame of type %d, not %d: %v", got, want, err)
	}
}

// TestIdleAfterOtherComes: a connection makes room for another which began to wait between its last outcome and its
// becoming idle.
func TestIdleAfterOtherComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newPipeOwner(t, 1)
		first := o.connected()
		begin, rest := o.begin()
		o.write(first, begin, rest)
		synctest.Wait() // the owner writes the outcome, and is not idle yet
		_, greeted := o.connectSecond()
		o.wantFrame(first, frameOutcome)
		o.wantFrame(first, frameRetire)
		first.close()
		if err := <-greeted; err != nil {
			t.Error(err)
		}
	})
}

// TestRetiredBegins: if the connection which is to make room begins a transfer, another idle one makes room.
func TestRetiredBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newPipeOwner(t, 2)
		retired := make(chan *lane, 2)
		for range 2 {
			w := o.connected()
			begin, rest := o.begin()
			o.write(w, begin, rest)
			o.wantFrame(w, frameOutcome)
			go func() {
				if got, _, err := w.in.next(); err == nil && got == frameRetire {
					retired <- w
				}
			}()
		}
		_, greeted := o.connectSecond()
		begin, _ := o.begin()
		o.write(<-retired, begin)
		select {
		case w := <-retired:
			w.close()
		case err := <-greeted:
			t.Fatalf("no idle connection has made room: %v", err)
		}
		if err := <-greeted; err != nil {
			t.Error(err)
		}
	})
}

// TestRetireBeforeFirst: a connection which waits for room lets the writer of another begin its first transfer, and gets
// the room of one which begins none.
func TestRetireBeforeFirst(t *testing.T) {
	for name, begins := range map[string]bool{"begins": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newPipeOwner(t, 1)
				first := o.connected()
				_, greeted := o.connectSecond()
				if begins {
					begin, rest := o.begin()
					o.write(first, begin, rest)
					o.wantFrame(first, frameOutcome)
				}
				o.wantFrame(first, frameRetire)
				first.close()
				if err := <-greeted; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRefusal: a writer for which there is no room in time is told so, also over TLS.
func TestRefusal(t *testing.T) {
	pair := fixturetest.NewPair(t, fixturetest.CertOptions{Name: "owner"})
	for name, cfg := range map[string]*tls.Config{
		"tcp": nil,
		"tls": {Certificates: []tls.Certificate{pair.TLS}, SessionTicketsDisabled: true}, // a pipe has no room for tickets
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newPipeOwner(t, 1)
				o.tls, o.late = cfg, true
				begin, _ := o.begin()
				o.write(o.connected(), begin)
				err := o.connect().greet(t.Context(), "")
				if OutcomeOf(err) != Overloaded || fault.CodeOf(err) != fault.Overloaded {
					t.Errorf("the writer is told %v", err)
				}
			})
		})
	}
}

// sentConn keeps what is written to it.
type sentConn struct {
	bytesConn
	sent bytes.Buffer
}

func (c *sentConn) Write(p []byte) (int, error) { return c.sent.Write(p) }

// TestRetireKeepsOutcomes: a RETIRE follows the outcomes which were not sent before.
func TestRetireKeepsOutcomes(t *testing.T) {
	_, l, _ := newBytesLane(t, make([]byte, 1))
	conn := &sentConn{}
	l.conn, l.retiring = conn, true
	want := appendRetire(appendVerdict(nil, frameOutcome, nil))
	l.out = appendVerdict(nil, frameOutcome, nil)
	if !l.retire() || !bytes.Equal(conn.sent.Bytes(), want) {
		t.Errorf("%x was sent, not %x", conn.sent.Bytes(), want)
	}
}

// heldConn writes what it is given at once when held is nil again.
type heldConn struct {
	net.Conn
	held *bytes.Buffer
}

func (c *heldConn) Write(p []byte) (int, error) {
	if c.held != nil {
		return c.held.Write(p)
	}
	return c.Conn.Write(p)
}

// TestRetireHeldByTLS: a writer finds the RETIRE on an idle connection also if TLS has read it together with the
// outcome before.
func TestRetireHeldByTLS(t *testing.T) {
	pair := fixturetest.NewPair(t, fixturetest.CertOptions{Name: "owner"})
	near, far := net.Pipe()
	held := &heldConn{Conn: far}
	peer := tls.Server(held, &tls.Config{Certificates: []tls.Certificate{pair.TLS}, SessionTicketsDisabled: true})
	l := &lane{conn: tls.Client(near, &tls.Config{InsecureSkipVerify: true})}
	l.in.r = l.conn
	sent, more := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := peer.Write(appendVerdict(nil, frameOutcome, nil))
		sent <- err
		<-more
		held.held = new(bytes.Buffer)
		_, _ = peer.Write(appendVerdict(nil, frameOutcome, nil))
		_, _ = peer.Write(appendRetire(nil))
		_, err = far.Write(held.held.Bytes())
		sent <- err
	}()
	for _, usable := range []bool{true, false} {
		if got, _, err := l.in.next(); err != nil || got != frameOutcome {
			t.Fatal(got, err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		l.until = time.Now().Add(time.Hour)
		if isUsable(l) != usable || !l.until.IsZero() {
			t.Errorf("usable is %v, not %v; the deadline is thought to be %v", !usable, usable, l.until)
		}
		if usable {
			close(more)
		}
	}
	near.Close()
	far.Close()
}
