package rpc_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
)

func TestNATSEmbedded(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane {
		return newNATS(t, natsdtest.Connect(t, startNATS(t, natsd.Config{})), rpc.NATSPlaneConfig{})
	})
}

func TestNATSOverTCP(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane {
		return newNATS(t, natsdtest.Connect(t, startNATS(t, natsd.Config{Listen: "127.0.0.1:0"})), rpc.NATSPlaneConfig{})
	})
}

// The two ends have a connection each.
func TestNATSBetweenProcesses(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane {
		s := startNATS(t, natsd.Config{Listen: "127.0.0.1:0"})
		serves, calls := newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{}), newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{})
		return &rpc.SchemeMux{Plane: serves, ByScheme: map[string]rpc.Plane{"nats": calls}}
	})
}

func startNATS(t *testing.T, cfg natsd.Config) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newNATS returns a plane that ends with the test. It is patient where cfg does not say otherwise.
func newNATS(t *testing.T, nc *nats.Conn, cfg rpc.NATSPlaneConfig) *rpc.NATSPlane {
	t.Helper()
	cfg.KeepAlive = cmp.Or(cfg.KeepAlive, rpc.Patience)
	p, err := rpc.NewNATSPlane(nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// stored returns how many messages the bucket has.
func stored(t *testing.T, nc *nats.Conn) uint64 {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(fixturetest.PatientContext(t), "OBJ_penstock_rpc")
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// The prompt of a million tokens goes through the object store and leaves nothing
// there.
func TestNATSLongPrompt(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	stop := testLongPrompt(t, newNATS(t, nc, rpc.NATSPlaneConfig{}))
	stop()
	if n := stored(t, nc); n != 0 {
		t.Errorf("the bucket has %d messages when the server is done", n)
	}
}

// While a handler has its body, the object is there for the usual tools; a body
// whose call reaches no handler is removed by the caller.
func TestNATSObjects(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	body := bytes.Repeat([]byte("0123456789"), 100_000)

	// A server that reads the object and refuses the call: until then the object stays as it was written.
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	sub, err := nc.Subscribe("refusing", func(m *nats.Msg) {
		if m.Data[0] != 1 {
			return
		}
		object := string(m.Data[len(m.Data)-26:])
		store, err := js.ObjectStore(fixturetest.PatientContext(t), "penstock_rpc")
		if err != nil {
			t.Error(err)
		}
		b, err := store.GetBytes(fixturetest.PatientContext(t), object) // checks the digest
		if err != nil {
			t.Error(err)
		}
		got <- b
		refusal := append(seqMsg(18, 1), byte(fault.Overloaded), 0, 0, 0, 0, 0, 0)
		if err := nc.Publish(m.Reply, refusal); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	p := newNATS(t, nc, rpc.NATSPlaneConfig{})
	if err := p.Call(t.Context(), "nats://refusing", "m", body, ignore); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("a server which refuses: %v", err)
	}
	if b := <-got; !bytes.Equal(b, body) {
		t.Errorf("the object has %d bytes, other than the body", len(b))
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("silent", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	impatient := newNATS(t, nc, rpc.NATSPlaneConfig{KeepAlive: 100 * time.Millisecond})
	if err := impatient.Call(t.Context(), "nats://silent", "m", body, ignore); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("a silent server: %v", err)
	}
	impatient.Close() // it waits for the removal
	if err := p.Call(t.Context(), "nats://nowhere", "m", body, ignore); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("no server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addr, stop := serve(t, p, "", func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
		cancel()
		<-ctx.Done()
		return nil
	})
	if err := p.Call(ctx, addr, "m", body, ignore); err != context.Canceled {
		t.Errorf("a call that was cancelled: %v", err)
	}
	stop()
	p.Close() // as above
	if n := stored(t, nc); n != 0 {
		t.Errorf("the bucket has %d messages", n)
	}
}

// A full bucket is overload; one that the operator made keeps its settings.
func TestNATSBucketIsFull(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateObjectStore(fixturetest.PatientContext(t), jetstream.ObjectStoreConfig{Bucket: "penstock_rpc", MaxBytes: 600 << 10}); err != nil {
		t.Fatal(err)
	}
	p := newNATS(t, nc, rpc.NATSPlaneConfig{})
	addr, _ := serve(t, p, "", nothing)
	if err := p.Call(t.Context(), addr, "m", make([]byte, 500<<10), ignore); err != nil {
		t.Errorf("a body that fits: %v", err)
	}
	if err := p.Call(t.Context(), addr, "m", make([]byte, 700<<10), ignore); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("a body that does not fit: %v, want Overloaded", err)
	}
	if err := p.Call(t.Context(), addr, "m", nil, ignore); err != nil {
		t.Errorf("a body that needs no bucket: %v", err)
	}
}

// A bucket that is lost is made again.
func TestNATSBucketIsLost(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	p := newNATS(t, nc, rpc.NATSPlaneConfig{})
	addr, _ := serve(t, p, "", nothing)
	for range 2 {
		if err := p.Call(t.Context(), addr, "m", make([]byte, 300<<10), ignore); err != nil {
			t.Fatal(err)
		}
		if err := js.DeleteObjectStore(fixturetest.PatientContext(t), "penstock_rpc"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNATSOverloaded(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	testOverloaded(t, newNATS(t, nc, rpc.NATSPlaneConfig{MaxCalls: 2, MaxBodies: rpc.MaxBody}))
}

// An address belongs to one server at a time.
func TestNATSConflict(t *testing.T) {
	s := startNATS(t, natsd.Config{})
	a, b := newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{}), newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{})
	addr, stop := serve(t, a, "nats://fleet.worker-1", nothing)
	if addr != "nats://fleet.worker-1" {
		t.Errorf("it advertises %q", addr)
	}
	if err := b.Serve(t.Context(), addr, nothing, func(string) { t.Error("two servers") }); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("error %v, want Conflict", err)
	}
	stop()
	serve(t, b, addr, nothing)
	if err := a.Call(t.Context(), addr, "m", nil, ignore); err != nil {
		t.Error(err)
	}
}

func TestNATSAddresses(t *testing.T) {
	p := newNATS(t, natsdtest.Connect(t, startNATS(t, natsd.Config{})), rpc.NATSPlaneConfig{Prefix: "a.b"})
	addr, _ := serve(t, p, "", nothing)
	if !strings.HasPrefix(addr, "nats://a.b.rpc.") {
		t.Errorf("the address is %q", addr)
	}
	for _, bad := range []string{"nats://", "nats://a.*", "nats://a.>", "nats://a..b", "tcp://a", "a", "nats://a b", "nats://" + strings.Repeat("a", 300)} {
		if err := p.Serve(t.Context(), bad, nothing, func(string) { t.Error("it serves") }); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("serve %.20s: %v", bad, err)
		}
		if err := p.Call(t.Context(), bad, "m", nil, ignore); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("call %.20s: %v", bad, err)
		}
	}
	for _, c := range []rpc.NATSPlaneConfig{
		{Prefix: "a."}, {Bucket: "a.b"}, {MaxStore: 1}, {Replicas: 9}, {KeepAlive: 1}, {MaxCalls: -1}, {MaxBodies: 1},
	} {
		if _, err := rpc.NewNATSPlane(nil, c); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// The messages of the wire, written by hand.
func seqMsg(typ byte, seq uint64) []byte { return binary.LittleEndian.AppendUint64([]byte{typ}, seq) }

func frameMsg(flags byte, seq uint64, data string) []byte {
	return append(binary.LittleEndian.AppendUint64([]byte{17, flags}, seq), data...)
}

// What a caller makes of servers that do not do as they should.
func TestNATSCallerMistrusts(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	flood := make([][]byte, 2*rpc.Credit)
	for i := range flood {
		flood[i] = frameMsg(0, uint64(i+1), "f")
	}
	for _, c := range []struct {
		name, says string
		answer     [][]byte
	}{
		{"silence", "silent", nil},
		{"a lost frame", "lost", [][]byte{frameMsg(0, 1, "a"), frameMsg(0, 3, "c")}},
		{"a lost first frame", "lost", [][]byte{frameMsg(0, 2, "b")}},
		{"a lost frame before the end", "lost", [][]byte{frameMsg(0, 1, "a"), seqMsg(18, 3)}},
		{"a frame that a beat tells of", "lost", [][]byte{frameMsg(0, 1, "a"), seqMsg(19, 2)}},
		{"a server that was restarted", "does not know", [][]byte{frameMsg(0, 1, "a"), {20}}},
		{"more than the credit", "credit", flood},
		{"a part that is too large", "malformed", [][]byte{frameMsg(0, 1, strings.Repeat("x", 65<<10))}},
		{"an empty message", "malformed", [][]byte{{}}},
		{"a short frame", "malformed", [][]byte{{17, 0, 1}}},
		{"a short end", "malformed", [][]byte{{18, 1}}},
		{"an end with a bad fault", "malformed", [][]byte{append(seqMsg(18, 1), 1, 2)}},
		{"unknown types", "", [][]byte{{0xff, 1, 2}, {99}, frameMsg(0, 1, "a"), {0x80}, seqMsg(18, 2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var cfg rpc.NATSPlaneConfig
			if c.answer == nil {
				cfg.KeepAlive = 100 * time.Millisecond
			}
			p := newNATS(t, nc, cfg)
			sent := make(chan struct{})
			sub, err := nc.Subscribe("odd", func(m *nats.Msg) {
				if m.Data[0] != 1 {
					return
				}
				defer close(sent)
				for _, a := range c.answer {
					if err := nc.Publish(m.Reply, a); err != nil {
						t.Error(err)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Unsubscribe()
			var hold sync.Once
			err = p.Call(t.Context(), "nats://odd", "m", nil, func([]byte) error {
				// The flood is to come while the caller stands still. The answer to
				// another call is sorted in behind it.
				hold.Do(func() {
					<-sent
					if err := p.Call(t.Context(), "nats://nowhere", "m", nil, func([]byte) error { return nil }); fault.CodeOf(err) != fault.Unavailable {
						t.Error(err)
					}
				})
				return nil
			})
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), c.says)):
				t.Errorf("error %v, want Unavailable that says %q", err, c.says)
			}
		})
	}
}

// A server that keeps to the credit and never ends a frame.
func TestNATSFrameWithoutEnd(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	sent := uint64(0)
	sub, err := nc.Subscribe("odd", func(m *nats.Msg) {
		allowed := uint64(rpc.Credit)
		switch m.Data[0] {
		case 1:
		case 2:
			allowed += binary.LittleEndian.Uint64(m.Data[1:])
		default:
			return
		}
		for ; sent < allowed; sent++ {
			// It may fail once the test is over.
			_ = nc.Publish(m.Reply, frameMsg(1, sent+1, strings.Repeat("x", 60<<10)))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	err = newNATS(t, nc, rpc.NATSPlaneConfig{}).Call(t.Context(), "nats://odd", "m", nil, ignore)
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "more than 8388608") {
		t.Errorf("error %v, want Unavailable that tells the limit", err)
	}
}

// callMsg is a call of version 1 without deadline, trace and object.
func callMsg(method, body string) []byte {
	b := []byte{1, 1}
	b = binary.LittleEndian.AppendUint16(b, uint16(16+len(method)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(method)))
	return append(append(append(b, 0, 0, 0, 0, 0, 0), method...), body...)
}

// rawCaller speaks to a server by hand.
type rawCaller struct {
	t       *testing.T
	nc      *nats.Conn
	subject string
	inbox   string
	sub     *nats.Subscription
}

func newRawCaller(t *testing.T, nc *nats.Conn, addr string) *rawCaller {
	t.Helper()
	c := &rawCaller{t: t, nc: nc, subject: strings.TrimPrefix(addr, "nats://"), inbox: nc.NewInbox()}
	var err error
	if c.sub, err = nc.SubscribeSync(c.inbox); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *rawCaller) say(b []byte) {
	c.t.Helper()
	if err := c.nc.PublishRequest(c.subject, c.inbox, b); err != nil {
		c.t.Fatal(err)
	}
}

// next returns the next message that is neither a sign of life nor without meaning.
func (c *rawCaller) next() []byte {
	c.t.Helper()
	for {
		m, err := c.sub.NextMsgWithContext(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		if len(m.Data) > 0 && m.Data[0] != 19 && m.Data[0] < 0x80 {
			return m.Data
		}
	}
}

// What a server makes of a caller that vanishes.
func TestNATSServerNoticesSilence(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	p := newNATS(t, nc, rpc.NATSPlaneConfig{KeepAlive: 100 * time.Millisecond})
	over := make(chan error, 2)
	addr, _ := serve(t, p, "", func(ctx context.Context, method string, _ []byte, send func([]byte) error) error {
		for method == "stuck" && send(nil) == nil {
		}
		<-ctx.Done()
		over <- ctx.Err()
		return nil
	})
	for _, method := range []string{"waiting", "stuck"} {
		newRawCaller(t, nc, addr).say(callMsg(method, "b"))
		if err := <-over; err != context.Canceled {
			t.Errorf("%s: the handler's context ended with %v", method, err)
		}
	}
}

// The credit counts messages exactly, grows by what was taken, and believes no
// caller that claims to have taken what was not sent.
func TestNATSCredit(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	p := newNATS(t, nc, rpc.NATSPlaneConfig{})
	sent := make(chan int, 1000)
	addr, _ := serve(t, p, "", func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
		for i := range 3 * rpc.Credit {
			if err := send([]byte(method)); err != nil {
				return err
			}
			sent <- i
		}
		return nil
	})
	c := newRawCaller(t, nc, addr)
	c.say(seqMsg(4, 0)) // a probe
	c.say(callMsg("method", "b"))
	expect := func(from, to int) {
		t.Helper()
		for i := from; i <= to; i++ {
			if got, want := c.next(), frameMsg(0, uint64(i), "method"); !bytes.Equal(got, want) {
				t.Fatalf("message %d is %x, want %x", i, got, want)
			}
			<-sent
		}
	}
	expect(1, rpc.Credit)
	c.say(seqMsg(2, 1<<40))
	c.say([]byte{2, 1})               // too short for a number
	c.say([]byte{77})                 // an unknown type
	c.say(callMsg("method", "twice")) // the reply subject is in use
	if got := c.next(); got[0] != 18 || fault.Code(got[9]) != fault.Conflict {
		t.Fatalf("a second call of one reply subject: %x", got)
	}
	if n := len(sent); n != 0 {
		t.Errorf("%d frames were sent without credit", n)
	}
	c.say(seqMsg(2, 10))
	expect(rpc.Credit+1, rpc.Credit+10)
	c.say(seqMsg(2, rpc.Credit+10))
	expect(rpc.Credit+11, 2*rpc.Credit+10)
	c.say(seqMsg(2, 2*rpc.Credit+10))
	expect(2*rpc.Credit+11, 3*rpc.Credit)
	if got, want := c.next(), seqMsg(18, 3*rpc.Credit+1); !bytes.Equal(got, want) {
		t.Errorf("the end is %x, want %x", got, want)
	}
	c.say(seqMsg(2, 3*rpc.Credit))
	if got := c.next(); !bytes.Equal(got, []byte{20}) {
		t.Errorf("a credit for a call that is over: %x", got)
	}
}

// What a server refuses.
func TestNATSServerRefuses(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	p := newNATS(t, nc, rpc.NATSPlaneConfig{})
	addr, _ := serve(t, p, "", func(context.Context, string, []byte, func([]byte) error) error {
		t.Error("a handler was called")
		return nil
	})
	later := callMsg("m", "b")
	later[1] = 2
	for name, c := range map[string]struct {
		msg  []byte
		want fault.Code
	}{
		"a later version": {later, fault.Unimplemented},
		"a short call":    {[]byte{1, 1, 0}, fault.Invalid},
		"half a body":     {callMsg("m", "body")[:23], fault.Invalid},
		"a wrong object":  {bytes.Replace(callMsg("*", "b"), []byte{1, 0, 0, 0, 0, 0, 0, 0}, []byte{0, 0, 0, 0, 0, 0, 1, 0}, 1), fault.Invalid},
	} {
		r := newRawCaller(t, nc, addr)
		r.say(c.msg)
		if got := r.next(); got[0] != 18 || fault.Code(got[9]) != c.want {
			t.Errorf("%s: %x, want an end with %v", name, got, c.want)
		}
	}
}

// A call whose body is said to be in the object store, and is not, ends without
// having cost what the body would.
func TestNATSObjectIsNotThere(t *testing.T) {
	nc := natsdtest.Connect(t, startNATS(t, natsd.Config{}))
	addr, _ := serve(t, newNATS(t, nc, rpc.NATSPlaneConfig{}), "", func(context.Context, string, []byte, func([]byte) error) error {
		t.Error("a handler was called")
		return nil
	})
	msg := callMsg("m", "")
	binary.LittleEndian.PutUint16(msg[2:], 16+1+5)
	binary.LittleEndian.PutUint32(msg[8:], rpc.MaxBody)
	binary.LittleEndian.PutUint16(msg[18:], 5)
	msg = append(msg, "other"...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 {
		r := newRawCaller(t, nc, addr)
		r.say(msg)
		if got := r.next(); got[0] != 18 || fault.Code(got[9]) != fault.Unavailable {
			t.Errorf("%x, want an end with Unavailable", got)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > rpc.MaxBody {
		t.Errorf("%d bytes were allocated for four bodies of %d that did not come", n, rpc.MaxBody)
	}
}

// When NATS is gone, so are the calls over it, on both sides, and what comes after its return works. A machine which cannot
// make a call within the keep-alive gets a longer one.
func TestNATSIsGone(t *testing.T) {
	for keepAlive := 500 * time.Millisecond; !loseNATS(t, keepAlive); keepAlive *= 4 {
		t.Logf("a keep-alive of %v is too short for this machine", keepAlive)
	}
}

// loseNATS ends the server during a call, and reports whether the calls before and after it were fast enough.
func loseNATS(t *testing.T, keepAlive time.Duration) bool {
	t.Helper()
	at := fixturetest.ReserveAddr(t)
	s := startNATS(t, natsd.Config{Listen: at})
	calls, serves := natsdtest.Connect(t, s), natsdtest.Connect(t, s)
	cfg := rpc.NATSPlaneConfig{KeepAlive: keepAlive}
	over := make(chan struct{}, 1)
	addr, _ := serve(t, newNATS(t, serves, cfg), "", func(ctx context.Context, method string, _ []byte, send func([]byte) error) error {
		if err := send([]byte(method)); err != nil || method == "short" {
			return err
		}
		<-ctx.Done()
		over <- struct{}{}
		return nil
	})
	p := newNATS(t, calls, cfg)
	came := false
	err := p.Call(t.Context(), addr, "long", nil, func([]byte) error {
		came = true
		return s.Close()
	})
	if fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("error %v, want Unavailable", err)
	}
	if !came && keepAlive < rpc.Patience {
		return false
	}
	<-over
	for _, body := range [][]byte{nil, make([]byte, 100<<10)} {
		if err := p.Call(t.Context(), addr, "short", body, ignore); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("without NATS: %v", err)
		}
	}
	startNATS(t, natsd.Config{Listen: at})
	for p.Call(t.Context(), addr, "short", nil, ignore) != nil { // both connections return by themselves
	}
	err = p.Call(t.Context(), addr, "short", make([]byte, 100<<10), ignore)
	if err != nil && strings.Contains(err.Error(), "silent") && keepAlive < rpc.Patience {
		return false
	}
	if err != nil {
		t.Errorf("NATS has returned: %v", err)
	}
	return true
}

// A server whose connection is closed says so, and does not hang.
func TestNATSConnectionIsClosed(t *testing.T) {
	s := startNATS(t, natsd.Config{})
	nc := natsdtest.Connect(t, s)
	p := newNATS(t, nc, rpc.NATSPlaneConfig{})
	err := p.Serve(t.Context(), "", nothing, func(addr string) {
		nc.Close()
		if err := p.Call(t.Context(), addr, "m", nil, ignore); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a call: %v", err)
		}
	})
	if fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Serve: %v, want Unavailable", err)
	}
}

// Close ends what is in progress, and nothing begins after it.
func TestNATSClose(t *testing.T) {
	s := startNATS(t, natsd.Config{})
	serves, p := newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{}), newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{})
	addr, _ := serve(t, serves, "", func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
		_ = send(nil)
		<-ctx.Done()
		return nil
	})
	err := p.Call(t.Context(), addr, "m", nil, func([]byte) error {
		go p.Close()
		return nil
	})
	if fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("error %v, want Unavailable", err)
	}
	p.Close()
	if err := p.Call(t.Context(), addr, "m", nil, ignore); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("a call after Close: %v", err)
	}
	if err := p.Serve(t.Context(), "", nothing, nil); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Serve after Close: %v", err)
	}
}

// The end of a server's process is known by its subject, before its silence tells.
func TestNATSServerDies(t *testing.T) {
	s := startNATS(t, natsd.Config{Listen: "127.0.0.1:0"})
	dies := natsdtest.Connect(t, s)
	// The caller asks for its subject five times in the time after which it takes the server for silent.
	cfg := rpc.NATSPlaneConfig{KeepAlive: 10 * time.Second}
	serves, calls := newNATS(t, dies, cfg), newNATS(t, natsdtest.Connect(t, s), cfg)
	over := make(chan struct{})
	ready, done := make(chan string), make(chan error)
	go func() {
		done <- serves.Serve(t.Context(), "", func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
			_ = send(nil)
			<-ctx.Done()
			close(over)
			return nil
		}, func(a string) { ready <- a })
	}()
	err := calls.Call(t.Context(), <-ready, "m", nil, func([]byte) error {
		dies.Close()
		return nil
	})
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "nothing serves") {
		t.Errorf("error %v, want Unavailable that says that nothing serves", err)
	}
	<-over // its own messages cannot be sent any more
	if err := <-done; fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Serve: %v", err)
	}
}

func TestNATSTenThousandCalls(t *testing.T) {
	p := newNATS(t, natsdtest.Connect(t, startNATS(t, natsd.Config{Listen: "127.0.0.1:0"})), rpc.NATSPlaneConfig{})
	testTenThousand(t, p, func(addr string) string { return addr })
}

func TestNATSMethods(t *testing.T) {
	testMethods(t, newNATS(t, natsdtest.Connect(t, startNATS(t, natsd.Config{})), rpc.NATSPlaneConfig{}))
}

// A blocked caller delays no other call, and loses nothing.
func TestNATSSlowCaller(t *testing.T) {
	s := startNATS(t, natsd.Config{})
	p := newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{})
	addr, _ := serve(t, newNATS(t, natsdtest.Connect(t, s), rpc.NATSPlaneConfig{}), "", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		for i := range 10 * rpc.Credit {
			if err := send(fmt.Append(nil, i)); err != nil {
				return err
			}
		}
		return nil
	})
	whole := func(first func()) {
		n := 0
		err := p.Call(t.Context(), addr, "m", nil, func(f []byte) error {
			if n == 0 {
				first()
			}
			if string(f) != fmt.Sprint(n) {
				return fmt.Errorf("frame %d is %q", n, f)
			}
			n++
			return nil
		})
		if err != nil || n != 10*rpc.Credit {
			t.Errorf("%d frames, %v", n, err)
		}
	}
	whole(func() {
		var others sync.WaitGroup
		for range 20 {
			others.Go(func() { whole(func() {}) })
		}
		others.Wait()
	})
}
