package rpc

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// eachFrame passes on the frames of b, which is whole ones.
func eachFrame(t *testing.T, b []byte, see func(typ frameType, id uint32, payload []byte)) {
	t.Helper()
	for len(b) > 0 {
		typ, id, n := decodeFrameHeader(b)
		see(typ, id, b[tcpHeader:tcpHeader+n])
		b = b[tcpHeader+n:]
	}
}

// Whatever many senders send at once, short and long, each one's bytes arrive as
// it sent them.
func TestOutKeepsTheBytesOfEachSender(t *testing.T) {
	const seed, senders = 7, 20
	client, server := net.Pipe()
	var out tcpWriter
	out.init(framing{}, nil)
	var running, sending sync.WaitGroup
	running.Go(func() {
		if err := out.runWriter(client, time.Minute); !errors.Is(err, errClosed) {
			t.Errorf("the writer ended with %v", err)
		}
		client.Close()
	})
	want := make([]bytes.Buffer, senders)
	for i := range senders {
		sending.Go(func() {
			var wait queuedSend
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 200 {
				b := make([]byte, rng.IntN(100))
				if rng.IntN(20) == 0 {
					b = make([]byte, rng.IntN(5*turnBytes))
				}
				for j := range b {
					b[j] = byte(rng.Uint32())
				}
				want[i].Write(b)
				var err error
				if len(b) < 100 {
					err = out.sendFrame(nil, &wait, frameData, uint32(i), b[:len(b)/2], b[len(b)/2:])
				} else {
					err = out.sendInTurns(nil, &wait, frameMore, uint32(i), b)
				}
				if err != nil {
					t.Error(err)
				}
				clear(b)
			}
			if err := out.sendFrameNow(frameEnd, uint32(i), nil); err != nil {
				t.Error(err)
			}
		})
	}
	got := make([]bytes.Buffer, senders)
	c := &rawClient{t: t, conn: server}
	for ends := 0; ends < senders; {
		typ, id, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if len(payload) > tcpPayload {
			t.Fatalf("a payload of %d bytes", len(payload))
		}
		got[id].Write(payload)
		if typ == frameEnd {
			ends++
		}
	}
	sending.Wait()
	for i := range got {
		if !bytes.Equal(got[i].Bytes(), want[i].Bytes()) {
			t.Errorf("seed %d: sender %d sent %d bytes, of which %d others came", seed, i, want[i].Len(), got[i].Len())
		}
	}
	out.closeSenders(errClosed)
	running.Wait()
}

// Two long ones take turns, and a short frame that comes in between is in the
// next write.
func TestOutLongOnesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out tcpWriter
		out.init(framing{}, nil)
		long := make([]byte, 10*turnBytes)
		var sending sync.WaitGroup
		for id := range uint32(2) {
			sending.Go(func() {
				if err := out.sendInTurns(nil, new(queuedSend), frameMore, id, long); err != nil {
					t.Error(err)
				}
			})
		}
		var buf []byte
		for turn := range byte(10) {
			synctest.Wait()
			if err := out.sendFrameNow(frameData, 9, []byte{turn}); err != nil {
				t.Fatal(err)
			}
			var err error
			if buf, err = out.takeBytes(buf); err != nil {
				t.Fatal(err)
			}
			var bytes [2]int
			var short []byte
			eachFrame(t, buf, func(_ frameType, id uint32, payload []byte) {
				if id == 9 {
					short = append(short, payload...)
				} else {
					bytes[id] += len(payload)
				}
			})
			if bytes != [2]int{turnBytes, turnBytes} || len(short) != 1 || short[0] != turn {
				t.Errorf("turn %d carries %v bytes and the short frames %v", turn, bytes, short)
			}
		}
		sending.Wait()
		out.closeSenders(errClosed)
	})
}

// However many long ones there are, a write carries turns of four.
func TestOutLongOnesShareAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out tcpWriter
		out.init(framing{}, nil)
		var sending sync.WaitGroup
		for id := range uint32(6) {
			sending.Go(func() {
				if err := out.sendInTurns(nil, new(queuedSend), frameMore, id, make([]byte, 2*turnBytes)); err != nil {
					t.Error(err)
				}
			})
		}
		var total [6]int
		for range 3 {
			synctest.Wait()
			buf, err := out.takeBytes(nil)
			if err != nil {
				t.Fatal(err)
			}
			bytes := 0
			eachFrame(t, buf, func(_ frameType, id uint32, payload []byte) {
				bytes += len(payload)
				total[id] += len(payload)
			})
			if bytes != turnsPerWrite*turnBytes {
				t.Errorf("a write of %d bytes, want %d", bytes, turnsPerWrite*turnBytes)
			}
		}
		sending.Wait()
		for id, n := range total {
			if n != 2*turnBytes {
				t.Errorf("%d bytes of %d came", n, id)
			}
		}
	})
}

// A sender waits while the buffer is full, until there is room, its call is over,
// or the connection is.
func TestOutSendersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out tcpWriter
		out.init(framing{}, nil)
		fill := func() {
			for len(out.mu.buf) < maxBuffered {
				if err := out.sendFrame(nil, new(queuedSend), frameData, 1, make([]byte, 1000), nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		fill()
		stop, sent := make(chan struct{}), make(chan error, 2)
		go func() { sent <- out.sendFrame(nil, new(queuedSend), frameData, 2, nil, nil) }()
		go func() { sent <- out.sendFrame(stop, new(queuedSend), frameData, 3, nil, nil) }()
		synctest.Wait()
		if len(sent) != 0 {
			t.Fatal("a frame was sent into a full buffer")
		}
		close(stop)
		if err := <-sent; err == nil {
			t.Error("a call that was over sent a frame")
		}
		if _, err := out.takeBytes(nil); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Errorf("when there was room: %v", err)
		}
		fill()
		go func() { sent <- out.sendFrame(nil, new(queuedSend), frameData, 2, nil, nil) }()
		go func() { sent <- out.sendInTurns(nil, new(queuedSend), frameMore, 3, make([]byte, 1)) }()
		synctest.Wait()
		out.closeSenders(errSilent)
		for range 2 {
			if err := <-sent; !errors.Is(err, errSilent) {
				t.Errorf("on a connection that is over: %v", err)
			}
		}
	})
}

// Blocked senders are served in order, up to a part of the buffer each time; the rest of the buffer
// is for new senders.
func TestOutServesWaitingSendersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out tcpWriter
		out.init(framing{}, nil)
		for len(out.mu.buf) < maxBuffered {
			if err := out.sendFrame(nil, new(queuedSend), frameData, 0, make([]byte, 1000), nil); err != nil {
				t.Fatal(err)
			}
		}
		const waiting = 40
		var sending sync.WaitGroup
		stop := make(chan struct{})
		for id := range uint32(waiting) {
			sending.Go(func() {
				var over chan struct{}
				if id%10 == 3 {
					over = stop
				}
				err := out.sendFrame(over, new(queuedSend), frameData, 1+id, make([]byte, 1000), make([]byte, 1000))
				if (err != nil) != (id%10 == 3) {
					t.Errorf("sender %d: %v", id, err)
				}
			})
			synctest.Wait()
		}
		close(stop) // every tenth gives up
		synctest.Wait()
		var order []uint32
		for len(order) < waiting-4 {
			buf, err := out.takeBytes(nil)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(out.mu.buf); n > admitBytes+2000+tcpHeader {
				t.Errorf("%d bytes of senders which waited are in one buffer", n)
			}
			eachFrame(t, buf, func(_ frameType, id uint32, payload []byte) {
				if id > 0 {
					order = append(order, id-1)
				}
			})
		}
		sending.Wait()
		next := uint32(0)
		for _, id := range order {
			if next%10 == 3 {
				next++
			}
			if id != next {
				t.Fatalf("served in the order %v", order)
			}
			next++
		}
	})
}

// Frames that do not wait are bounded by the end of the connection, pings by one
// answer.
func TestOutDoesNotGrowForEver(t *testing.T) {
	var out tcpWriter
	out.init(framing{}, nil)
	n := 0
	for ; out.sendFrameNow(frameEnd, 1, nil) == nil; n++ {
		out.queuePong(make([]byte, pingSize))
	}
	if size := len(out.mu.buf); n != maxBacklog/tcpHeader || size > maxBacklog {
		t.Errorf("%d frames, %d bytes, at most %d may wait", n, size, maxBacklog)
	}
	if err := out.sendFrameNow(frameEnd, 1, nil); !errors.Is(err, errBacklog) {
		t.Error(err)
	}
	pongs := 0
	buf, err := out.takeBytes(nil)
	if err != nil {
		t.Fatal(err)
	}
	eachFrame(t, buf, func(typ frameType, _ uint32, _ []byte) {
		if typ == framePong {
			pongs++
		}
	})
	if pongs != 1 {
		t.Errorf("%d pongs, want 1", pongs)
	}
}
