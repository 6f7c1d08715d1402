package rpctest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"penstock/core/fault"
	"penstock/internal/plane/rpc"
)

func testOrder(t *testing.T, p rpc.Plane) {
	const n = 10 * rpc.Credit
	s := startServer(t, p, func(_ context.Context, method string, body []byte, send func([]byte) error) error {
		for i := range n {
			if err := send(fmt.Appendf(nil, "%s %s %d", method, body, i)); err != nil {
				return err
			}
		}
		return nil
	})
	var f frameRecorder
	if err := p.Call(t.Context(), s.addr, "count", []byte("to"), f.record); err != nil {
		t.Fatal(err)
	}
	if len(f.got) != n {
		t.Fatalf("%d frames, want %d", len(f.got), n)
	}
	for i, got := range f.got {
		if want := "count to " + strconv.Itoa(i); got != want {
			t.Fatalf("frame %d is %q, want %q", i, got, want)
		}
	}
}

func testEmptyFrames(t *testing.T, p rpc.Plane) {
	sent := []string{"", "a", "", "", "b", ""}
	s := startServer(t, p, func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		if len(body) != 0 {
			return fault.New(fault.Invalid, "body of %d bytes, want none", len(body))
		}
		for _, f := range sent {
			if err := send([]byte(f)); err != nil {
				return err
			}
		}
		return send(nil)
	})
	var f frameRecorder
	if err := p.Call(t.Context(), s.addr, "", nil, f.record); err != nil {
		t.Fatal(err)
	}
	if want := append(sent, ""); !slices.Equal(f.got, want) {
		t.Fatalf("frames %q, want %q", f.got, want)
	}
}

func testNoFrames(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, func(context.Context, string, []byte, func([]byte) error) error { return nil })
	var f frameRecorder
	if err := p.Call(t.Context(), s.addr, "m", nil, f.record); err != nil || len(f.got) != 0 {
		t.Fatalf("error %v and %d frames, want neither", err, len(f.got))
	}
}

// testLargeBody sends 8 MiB there and back.
func testLargeBody(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		return send(body)
	})
	body := make([]byte, 8<<20)
	for i := 0; i < len(body); i += 8 {
		binary.LittleEndian.PutUint64(body[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	want, n := sha256.Sum256(body), 0
	err := p.Call(t.Context(), s.addr, "echo", body, func(f []byte) error {
		n++
		if sha256.Sum256(f) != want {
			t.Errorf("the frame of %d bytes differs from the body of %d", len(f), len(body))
		}
		return nil
	})
	if err != nil || n != 1 {
		t.Fatalf("error %v after %d frames, want one frame", err, n)
	}
}

func testLimits(t *testing.T, p rpc.Plane) {
	var calls atomic.Int64
	s := startServer(t, p, func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		calls.Add(1)
		return send(make([]byte, rpc.MaxFrame+1))
	})
	err := p.Call(t.Context(), s.addr, "m", make([]byte, rpc.MaxBody+1), discardFrame)
	if fault.CodeOf(err) != fault.TooLarge || calls.Load() != 0 {
		t.Errorf("oversize body: error %v and %d calls, want TooLarge and none", err, calls.Load())
	}
	err = p.Call(t.Context(), s.addr, strings.Repeat("m", rpc.MaxMethod+1), nil, discardFrame)
	if fault.CodeOf(err) != fault.TooLarge || calls.Load() != 0 {
		t.Errorf("oversize method: error %v and %d calls, want TooLarge and none", err, calls.Load())
	}
	var f frameRecorder
	err = p.Call(t.Context(), s.addr, strings.Repeat("m", rpc.MaxMethod), nil, f.record)
	if fault.CodeOf(err) != fault.TooLarge || len(f.got) != 0 {
		t.Errorf("oversize frame: error %v and %d frames, want TooLarge and none", err, len(f.got))
	}
}

// testFrameIsCopied overwrites each frame as soon as send has returned.
func testFrameIsCopied(t *testing.T, p rpc.Plane) {
	const n = 3 * rpc.Credit
	s := startServer(t, p, func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		buf := make([]byte, 512)
		for i := range n {
			for j := range buf {
				buf[j] = byte(i)
			}
			if err := send(buf); err != nil {
				return err
			}
			clear(buf)
		}
		return nil
	})
	i := 0
	err := p.Call(t.Context(), s.addr, "m", nil, func(f []byte) error {
		if !bytes.Equal(f, bytes.Repeat([]byte{byte(i)}, 512)) {
			return fmt.Errorf("frame %d was changed after send", i)
		}
		i++
		return nil
	})
	if err != nil || i != n {
		t.Fatalf("error %v after %d frames, want %d frames", err, i, n)
	}
}

// testBodyIsCopied cancels a call and overwrites its body while the handler still reads it.
func testBodyIsCopied(t *testing.T, p rpc.Plane) {
	entered, overwritten, same := make(chan struct{}), make(chan struct{}), make(chan bool, 1)
	want := bytes.Repeat([]byte("b"), 4096)
	s := startServer(t, p, func(_ context.Context, _ string, body []byte, _ func([]byte) error) error {
		close(entered)
		<-overwritten
		same <- bytes.Equal(body, want)
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	body := bytes.Clone(want)
	if err := p.Call(ctx, s.addr, "m", body, discardFrame); err != context.Canceled {
		t.Errorf("error %v, want context.Canceled", err)
	}
	clear(body)
	close(overwritten)
	if !<-same {
		t.Error("the handler saw the caller overwrite the body after the call")
	}
}

// testBackpressure blocks the caller at its first frame while the handler tries to send far more
// than any plane may buffer.
func testBackpressure(t *testing.T, p rpc.Plane) {
	const (
		size  = 64 << 10
		total = 4096 // 256 MiB
		// What may be in flight: the credit, one frame on each side, and 8 MiB for the sockets of
		// network planes.
		bound = rpc.Credit + 2 + (8<<20)/size
	)
	var sent atomic.Int64
	s := startServer(t, p, func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
		if method == "ping" {
			return nil
		}
		frame := make([]byte, size)
		for range total {
			if err := send(frame); err != nil {
				return err
			}
			sent.Add(1)
		}
		return nil
	})
	received := 0
	err := p.Call(t.Context(), s.addr, "flood", nil, func([]byte) error {
		received++
		if received != 1 {
			return nil
		}
		// Other calls serve as the clock: each gives the flood time to run ahead, and none of them
		// is delayed by it.
		for range 500 {
			if err := p.Call(t.Context(), s.addr, "ping", nil, discardFrame); err != nil {
				return err
			}
		}
		if n := sent.Load(); n > bound {
			return fmt.Errorf("%d frames were sent while the caller stood at the first, at most %d may be", n, bound)
		}
		return nil
	})
	if err != nil || received != total {
		t.Fatalf("error %v after %d frames, want %d frames", err, received, total)
	}
}
