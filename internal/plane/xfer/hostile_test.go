package xfer

import (
	"bytes"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// serveStream has an owner of 10 bytes serve one transfer of a writer which sends stream after its
// BEGIN, and returns what the owner's Wait returned.
func serveStream(t *testing.T, stream []byte) error {
	t.Helper()
	tr, l, sent := newBytesLane(t, make([]byte, 10))
	sent.Write(stream)
	begin := appendBegin(nil, beginHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: 10})
	served := l.serveTransfer(begin[frameHead : len(begin)-frameSum])
	_, err := tr.Wait(t.Context())
	if OutcomeOf(served) != OutcomeOf(err) {
		t.Errorf("the writer is told %v, the owner %v", served, err)
	}
	return err
}

// TestHostileWriter: whatever a writer sends, the owner announces only what it expects.
func TestHostileWriter(t *testing.T) {
	src := []byte("0123456789")
	chunk := func(offset uint64, b []byte) []byte {
		return append(appendChunk(nil, chunkHeader{offset: offset, size: uint32(len(b)), digest: digestBytes(b)}), b...)
	}
	good := chunk(0, src)
	torn := bytes.Clone(good)
	torn[len(torn)-1] ^= 1
	for name, c := range map[string]struct {
		stream []byte
		want   TransferOutcome
	}{
		"good":          {appendEnd(bytes.Clone(good), DigestOf(src), nil), OK},
		"early end":     {appendEnd(nil, DigestOf(), nil), Invalid},
		"short chunk":   {appendEnd(chunk(0, src[:9]), DigestOf(src[:9]), nil), Invalid},
		"long chunk":    {appendEnd(chunk(0, append(bytes.Clone(src), 'x')), DigestOf(src), nil), Invalid},
		"other offset":  {appendEnd(chunk(1, src[:9]), DigestOf(src), nil), Invalid},
		"chunk again":   {appendEnd(append(bytes.Clone(good), good...), DigestOf(src), nil), Invalid},
		"torn":          {appendEnd(torn, DigestOf(src), nil), Corrupt},
		"other digest":  {appendEnd(bytes.Clone(good), DigestOf(src)+1, nil), Corrupt},
		"begin again":   {appendBegin(bytes.Clone(good), beginHeader{size: 10}), Invalid},
		"cut off":       {good[:len(good)-1], Lost},
		"no end":        {good, Lost},
		"abort":         {appendVerdict(bytes.Clone(good), frameAbort, newFailure(Expired, "why")), Expired},
		"abort with ok": {appendVerdict(bytes.Clone(good), frameAbort, nil), Aborted},
		"damaged frame": {append(bytes.Clone(good), 8, 0, 0, 0, byte(frameEnd), 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0), Lost},
	} {
		if err := serveStream(t, c.stream); OutcomeOf(err) != c.want {
			t.Errorf("%s: %v, not %v", name, err, c.want)
		}
	}
}

// TestAbortWaits: when Abort returns, the plane has let go of the memory.
func TestAbortWaits(t *testing.T) {
	for range 20 {
		r := newRegistry(1, discardObserver{})
		r.addEndpoint(OwnerAddress{TCP, "test"})
		var letGo atomic.Bool
		touching, aborting := make(chan struct{}), make(chan struct{})
		tr, err := r.Expect(Incoming{Into: [][]byte{make([]byte, 10)}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.claimTransfer(beginHeader{epoch: r.epoch, id: tr.desc.id, size: 10}, TCP, func() {}); err != nil {
			t.Fatal(err)
		}
		go func() { // a lane, which ends with the release
			close(touching)
			<-aborting
			for range 1000 {
				runtime.Gosched()
			}
			letGo.Store(true)
			_ = tr.release(errDamagedFrame) // the reason of Abort was first
		}()
		<-touching
		close(aborting)
		tr.Abort(errDamagedFrame)
		if !letGo.Load() {
			t.Fatal("Abort returned while the memory was in use")
		}
	}
}

// TestCompleteTooLate: a transfer which was aborted cannot end well, even if its bytes have come.
func TestCompleteTooLate(t *testing.T) {
	r := newRegistry(1, discardObserver{})
	r.addEndpoint(OwnerAddress{TCP, "test"})
	tr, err := r.Expect(Incoming{Into: [][]byte{make([]byte, 10)}})
	if err != nil {
		t.Fatal(err)
	}
	interrupted := false
	if _, err := r.claimTransfer(beginHeader{epoch: r.epoch, id: tr.desc.id, size: 10}, TCP, func() { interrupted = true }); err != nil {
		t.Fatal(err)
	}
	tr.abortWith(newFailure(Expired, "the lease has passed"))
	if err := tr.addVerified(10); !interrupted || OutcomeOf(err) != Expired {
		t.Errorf("interrupted %v, %v", interrupted, err)
	}
	if err := tr.complete(0, nil); OutcomeOf(err) != Expired {
		t.Fatalf("it was completed: %v", err)
	}
	_ = tr.release(errUnknown())
	if _, err := tr.Wait(t.Context()); OutcomeOf(err) != Expired {
		t.Errorf("the reason is %v", err)
	}
}

// TestSilentConnections: connections which never greet do not keep a writer out.
func TestSilentConnections(t *testing.T) {
	p := runTCP(t, TCPConfig{Config: Config{Serve: 4}})
	tr, err := p.Expect(Incoming{Into: [][]byte{make([]byte, 10)}})
	if err != nil {
		t.Fatal(err)
	}
	d := tr.Descriptor()
	addr, _ := d.endpoint(TCP)
	for range maxGreeting + 8 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if err := Write(t.Context(), p, d, nil, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	if _, err := tr.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWriterNeverReads: a writer which asks for outcomes and never reads them loses its connection, also when the
// owner waits for room to send them.
func TestWriterNeverReads(t *testing.T) {
	p := runTCP(t, TCPConfig{Config: Config{Silence: 10 * time.Millisecond}})
	tr, err := p.Expect(Incoming{Into: [][]byte{make([]byte, 10)}})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Abort(nil)
	d := tr.Descriptor()
	addr, _ := d.endpoint(TCP)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	out := appendHello(nil, hello{least: version, most: version})
	unknown := append(appendWhole(nil, wholeHeader{size: 1}, nil), 0)
	for err == nil {
		_, err = conn.Write(out)
		out = bytes.Repeat(unknown, 1000)
	}
}
