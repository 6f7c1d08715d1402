package xfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/core/fault"
)

// ringLane returns the writer's end of a connection over rings with a region of so many slots, and the owner's end.
func ringLane(t *testing.T, slots int) (*lane, *ringConn) {
	t.Helper()
	writer, owner := ringPair(t)
	l := &lane{conn: writer, addr: "owner", slots: slots, generation: 1}
	l.window = &window{b: make([]byte, slots*ChunkSize), fd: -1}
	l.in.r = writer
	return l, owner
}

// newTestPool returns a pool whose owner is at the other end of l.
func newTestPool(t *testing.T, transport Transport, l *lane) *lanePool {
	t.Helper()
	cfg := &Config{Silence: time.Hour}
	cfg.EnsureDefaults()
	p := newLanePool(cfg, transport, func(context.Context, string) (*lane, error) { return l, nil })
	t.Cleanup(p.close)
	return p
}

// TestSmallRegion: small transfers stay within a region of one slot, which an owner may have.
func TestSmallRegion(t *testing.T) {
	l, owner := ringLane(t, 1)
	p := newTestPool(t, Shm, l)
	const transfers = 4
	var all sync.WaitGroup
	all.Go(func() {
		in := frameReader{r: owner}
		for range transfers {
			typ, payload, err := in.next()
			if err != nil || typ != frameWhole {
				t.Error(typ, err)
				return
			}
			if h, _, err := decodeWhole(payload); err != nil || h.at+h.size > ChunkSize {
				t.Errorf("a WHOLE of %d bytes at %d: %v", h.size, h.at, err)
			}
			if _, err := owner.Write(appendVerdict(nil, frameOutcome, nil)); err != nil {
				t.Error(err)
			}
		}
	})
	for range transfers {
		all.Go(func() {
			s, err := p.joinShared(t.Context(), "owner")
			if err == nil {
				err = s.writeWhole(t.Context(), Descriptor{Size: ChunkSize}, nil, [][]byte{make([]byte, ChunkSize)})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestEarlyOutcome: an owner which says that it has bytes which were not sent fails the transfer, and its connection is
// dropped.
func TestEarlyOutcome(t *testing.T) {
	l, owner := ringLane(t, regionSlots)
	p := newTestPool(t, Shm, l)
	if _, err := owner.Write(appendTaken(appendVerdict(nil, frameOutcome, nil), 1)); err != nil {
		t.Fatal(err)
	}
	w, err := p.open(t.Context(), "owner", Descriptor{Size: 2 * regionSize})
	if err != nil {
		t.Fatal(err)
	}
	err = w.Write(make([]byte, regionSize+ChunkSize))
	if err == nil {
		err = w.Write(make([]byte, ChunkSize))
	}
	if OutcomeOf(err) != Invalid {
		t.Error(err)
	}
	if n := len(p.mu.owners); n > 0 {
		t.Errorf("connections to %d owners are still in use", n)
	}
}

// TestFullRing: an owner which answers small transfers without taking their frames fails them: no writer waits for
// room with the lock of the connection.
func TestFullRing(t *testing.T) {
	l, owner := ringLane(t, regionSlots)
	p := newTestPool(t, Shm, l)
	note := make([]byte, maxWholeNote)
	size := uint64(len(appendWhole(nil, wholeHeader{}, note)))
	failed := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for n := uint64(1); ; n++ {
			for owner.peers.word(wordWritten).Load() < n*size {
				select {
				case <-failed:
					return
				default:
					runtime.Gosched()
				}
			}
			if _, err := owner.Write(appendVerdict(nil, frameOutcome, nil)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var err error
	for err == nil {
		var s *sharedLane
		if s, err = p.joinShared(t.Context(), "owner"); err == nil {
			err = s.writeWhole(t.Context(), Descriptor{Size: 1}, note, [][]byte{{1}})
		}
	}
	close(failed)
	all.Wait()
	if !errors.Is(err, errFullRing) {
		t.Error(err)
	}
}

// TestAbortFullRing: an owner which takes no frames does not hold a writer which gives up.
func TestAbortFullRing(t *testing.T) {
	l, _ := ringLane(t, regionSlots)
	p := newTestPool(t, Shm, l)
	w, err := p.open(t.Context(), "owner", Descriptor{Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.conn.Write(make([]byte, ringBytes)); err != nil {
		t.Fatal(err)
	}
	w.Abort(errors.New("not needed"))
	if n := len(p.mu.owners); n > 0 {
		t.Errorf("connections to %d owners are still in use", n)
	}
}

// pipeLane returns the writer's end of a connection which holds no bytes, and the owner's end.
func pipeLane(t *testing.T) (*lane, net.Conn) {
	t.Helper()
	writer, owner := net.Pipe()
	t.Cleanup(func() { owner.Close() })
	l := &lane{conn: writer, addr: "owner"}
	l.in.r = writer
	return l, owner
}

// TestPeerNeverReads: the context of a small transfer ends it also while its bytes are written to an owner which does
// not read.
func TestPeerNeverReads(t *testing.T) {
	l, _ := pipeLane(t)
	p := newTestPool(t, TCP, l)
	s, err := p.joinShared(t.Context(), "owner")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !isWriting(s) {
			runtime.Gosched()
		}
		cancel()
	}()
	if err := s.writeWhole(ctx, Descriptor{Size: 1}, nil, [][]byte{{1}}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func isWriting(s *sharedLane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writing) > 0
}

// TestOutcomeWhileWriting: a writer's memory is its own again once Write has returned, also if the owner answers before
// it has read the bytes.
func TestOutcomeWhileWriting(t *testing.T) {
	l, owner := pipeLane(t)
	p := newTestPool(t, TCP, l)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	write := func(alone bool) {
		s, err := p.joinShared(ctx, "owner")
		if err != nil {
			t.Error(err)
			return
		}
		if err := s.writeWhole(ctx, Descriptor{Size: 1}, nil, [][]byte{{1}}); err != nil {
			t.Error(err)
		}
		if alone && isWriting(s) {
			t.Error("its bytes are being written")
		}
	}
	s, err := p.joinShared(ctx, "owner")
	if err != nil {
		t.Fatal(err)
	}
	all.Go(func() { write(false) })
	for !isWriting(s) {
		runtime.Gosched()
	}
	all.Go(func() { write(true) }) // queued, and written by a goroutine of the connection
	for {
		s.mu.Lock()
		n := len(s.mu.queued)
		s.mu.Unlock()
		if n == 1 {
			break
		}
		runtime.Gosched()
	}
	frame := len(appendWhole(nil, wholeHeader{}, nil))
	// The second transfer's byte is not read.
	if _, err := io.ReadFull(owner, make([]byte, frame+1+frame)); err != nil {
		t.Fatal(err)
	}
	ok := appendVerdict(nil, frameOutcome, nil)
	if _, err := owner.Write(append(ok, ok...)); err != nil {
		t.Fatal(err)
	}
	for { // until both outcomes have come
		s.mu.Lock()
		n := len(s.mu.sent)
		s.mu.Unlock()
		if n == 0 {
			break
		}
		runtime.Gosched()
	}
	cancel()
	all.Wait()
	s.leave()
}

// TestBytesNeverCome: over TCP an owner gives up a connection whose writer does not send the bytes of a small transfer
// which is over. A machine which cannot greet in the time that it has for that gets more.
func TestBytesNeverCome(t *testing.T) {
	for handshake := time.Second / 2; !withholdBytes(t, handshake); handshake *= 4 {
		t.Logf("%v are too short for this machine", handshake)
	}
}

// withholdBytes reports whether the writer was connected in the time of a handshake, which is also what the owner waits
// for the bytes.
func withholdBytes(t *testing.T, handshake time.Duration) bool {
	t.Helper()
	p := runTCP(t, TCPConfig{Config: Config{Handshake: handshake}})
	tr, err := p.Expect(Incoming{Into: [][]byte{make([]byte, 10)}})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Abort(nil)
	addr, _ := tr.desc.endpoint(TCP)
	l, err := p.dialLane(t.Context(), addr)
	if err != nil {
		if handshake < time.Minute {
			return false
		}
		t.Fatal(err)
	}
	defer l.close()
	if _, err := l.conn.Write(appendWhole(nil, wholeHeader{epoch: tr.desc.epoch, size: 10}, nil)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.in.next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	return true
}

// doneContext tells that a call waits for its end.
type doneContext struct {
	context.Context
	waits func()
}

func (c doneContext) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// TestUnreachableOwner: calls which wait for a connection for small transfers learn that it failed, and do not connect
// one after the other.
func TestUnreachableOwner(t *testing.T) {
	cfg := &Config{}
	cfg.EnsureDefaults()
	dialed, fail := make(chan struct{}), make(chan struct{})
	dials := 0
	p := newLanePool(cfg, TCP, func(context.Context, string) (*lane, error) {
		if dials++; dials == 1 {
			close(dialed)
			<-fail
		}
		return nil, errors.New("no route to host")
	})
	join := func(ctx context.Context) {
		if _, err := p.joinShared(ctx, "owner"); fault.CodeOf(err) != fault.Unavailable {
			t.Error(err)
		}
	}
	var all sync.WaitGroup
	all.Go(func() { join(t.Context()) })
	<-dialed
	waiting := make(chan struct{})
	all.Go(func() { join(doneContext{t.Context(), sync.OnceFunc(func() { close(waiting) })}) })
	<-waiting
	close(fail)
	all.Wait()
	if dials != 1 {
		t.Errorf("%d connections were tried", dials)
	}
}

// TestFailedRegion: after a small transfer which failed the owner frees the memory of the region, also if the writer
// still maps it.
func TestFailedRegion(t *testing.T) {
	p, err := NewShmPlane(Config{Handshake: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	runPlane(t, p)
	for want, wrong := range map[TransferOutcome]Digest{OK: 0, Corrupt: 1} {
		src := bytes.Repeat([]byte{7}, 100)
		tr, err := p.Expect(Incoming{Into: [][]byte{make([]byte, len(src))}})
		if err != nil {
			t.Fatal(err)
		}
		addr, _ := tr.desc.endpoint(Shm)
		l, err := p.dialLane(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		copy(l.window.b, src)
		h := wholeHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: 100, generation: l.generation, digest: digestBytes(src) + wrong}
		if _, err := l.conn.Write(appendWhole(nil, h, nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := tr.Wait(t.Context()); OutcomeOf(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
		if err := l.conn.(*ringConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for err == nil { // until the owner has ended the connection
			_, _, err = l.in.next()
		}
		if freed := bytes.Equal(l.window.b[:len(src)], make([]byte, len(src))); freed != (want != OK) {
			t.Errorf("%v: the memory is freed: %v", want, freed)
		}
		l.close()
	}
}

// TestOtherGeneration: an owner takes nothing from a region which its writer uses under another generation.
func TestOtherGeneration(t *testing.T) {
	tr, l, _ := newBytesLane(t, make([]byte, 10))
	l.window, l.generation = &window{b: make([]byte, regionSize), fd: -1}, 2
	for _, generation := range []uint64{1, 3, 2} {
		h := wholeHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: 10, generation: generation, digest: digestBytes(make([]byte, 10))}
		whole := appendWhole(nil, h, nil)
		err := l.serveWhole(whole[frameHead : len(whole)-frameSum])
		if taken := tr.usedTransport() != 0; taken != (generation == 2) || taken != (err == nil) {
			t.Errorf("generation %d of 2: taken %v, %v", generation, taken, err)
		}
	}
}

// TestTooManyFiles: a greeting with more files than a region and two rings is refused before more are taken.
func TestTooManyFiles(t *testing.T) {
	writer, owner := ringPair(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	files := &fileReader{conn: writer.Conn}
	defer files.close()
	for range greetingFiles + 1 {
		if _, _, err = owner.Conn.(*net.UnixConn).WriteMsgUnix([]byte{1}, unix.UnixRights(fd), nil); err != nil {
			t.Fatal(err)
		}
		if _, err = files.Read(make([]byte, 1)); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "4 files came") {
		t.Errorf("%d files are open: %v", len(files.fds), err)
	}
}

// TestIdleConnectionForgets: a connection keeps nothing of the memory of a transfer which is over.
func TestIdleConnectionForgets(t *testing.T) {
	tr, l, sent := newBytesLane(t, make([]byte, 10))
	src := []byte("0123456789")
	sent.Write(src)
	whole := appendWhole(nil, wholeHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: 10, digest: digestBytes(src)}, nil)
	if err := l.serveWhole(whole[frameHead : len(whole)-frameSum]); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	pieces := l.sink.pieces[:1]
	if l.sink.transfer != nil || l.sink.into.slices != nil || pieces[0] != nil {
		t.Error("the connection has the memory of its last transfer")
	}
}
