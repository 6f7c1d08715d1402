package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
)

func TestMem(t *testing.T) {
	rpctest.Run(t, func(*testing.T) rpc.Plane { return rpc.NewMemPlane() })
}

// A plane without faults behind the wrapper is still a plane.
func TestFaultyWithoutFaults(t *testing.T) {
	rpctest.Run(t, func(*testing.T) rpc.Plane { return rpctest.WithFaults(rpc.NewMemPlane(), 1, rpctest.CallFaults{}) })
}

// serveMem serves h at addr until the test's bubble is to end.
func serveMem(t *testing.T, p rpc.Plane, addr string, h rpc.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	ready := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Serve(ctx, addr, h, func(string) { close(ready) }); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	<-ready
	return func() {
		cancel()
		<-done
	}
}

func TestMemCreditIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rpc.NewMemPlane()
		sent := 0
		stop := serveMem(t, p, "w", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
			for range 3 * rpc.Credit {
				if err := send([]byte("f")); err != nil {
					return err
				}
				sent++
			}
			return nil
		})
		received := 0
		err := p.Call(t.Context(), "w", "m", nil, func([]byte) error {
			if received == 0 {
				synctest.Wait()
				if want := rpc.Credit + 1; sent != want { // one is in this hand
					t.Errorf("%d frames sent while the caller held the first, want %d", sent, want)
				}
			}
			received++
			return nil
		})
		if err != nil || received != 3*rpc.Credit {
			t.Errorf("error %v after %d frames", err, received)
		}
		stop()
	})
}

// What a goroutine sends that the handler left behind comes too late, even while
// the caller is still receiving.
func TestMemLateSendDuringRecv(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rpc.NewMemPlane()
		var late func([]byte) error
		stop := serveMem(t, p, "w", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
			late = send
			return send([]byte("in time"))
		})
		n := 0
		err := p.Call(t.Context(), "w", "m", nil, func([]byte) error {
			n++
			synctest.Wait() // the handler has returned
			if late([]byte("late")) == nil {
				t.Error("a send after the handler returned succeeded")
			}
			return nil
		})
		if err != nil || n != 1 {
			t.Errorf("error %v after %d frames, want one frame", err, n)
		}
		stop()
	})
}

// A caller that is stuck in recv has still gone away when its context ends.
func TestMemHandlerSeesCancelDuringRecv(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rpc.NewMemPlane()
		over := false
		stop := serveMem(t, p, "w", func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
			if err := send(nil); err != nil {
				return err
			}
			<-ctx.Done()
			over = true
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		err := p.Call(ctx, "w", "m", nil, func([]byte) error {
			cancel()
			synctest.Wait()
			if !over {
				t.Error("the handler does not know that the caller went away")
			}
			return nil
		})
		if err != context.Canceled {
			t.Errorf("error %v, want context.Canceled", err)
		}
		stop()
	})
}

// The crash is for the log of the process; the client learns that there was one.
func TestMemPanicKeepsTheStackForTheLog(t *testing.T) {
	p := rpc.NewMemPlane()
	stop := serveMem(t, p, "w", func(context.Context, string, []byte, func([]byte) error) error { panic("defect 7") })
	defer stop()
	err := p.Call(t.Context(), "w", "m", nil, nil)
	if strings.Contains(err.Error(), "defect 7") {
		t.Errorf("the message tells what the handler said: %v", err)
	}
	cause := errors.Unwrap(err)
	if cause == nil || !strings.Contains(cause.Error(), "defect 7") || !strings.Contains(cause.Error(), "mem_test.go") {
		t.Errorf("the cause lacks the value or the stack: %v", cause)
	}
}

func TestMemFramesDoNotAllocate(t *testing.T) {
	p := rpc.NewMemPlane()
	frames := 1
	stop := serveMem(t, p, "w", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		frame := make([]byte, 200)
		for range frames {
			if err := send(frame); err != nil {
				return err
			}
		}
		return nil
	})
	defer stop()
	call := func() {
		if err := p.Call(t.Context(), "w", "m", nil, func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	one := testing.AllocsPerRun(20, call)
	frames = 10_000
	many := testing.AllocsPerRun(20, call)
	// A call may grow its two batches to the frames of its credit. The runtime, whose
	// own free lists go with every collection, allocates for goroutines that wait: much
	// less often than they do.
	if limit := one + rpc.Credit + 2 + float64(frames/100); many > limit {
		t.Errorf("a call of %d frames allocates %v times, one of a single frame %v", frames, many, one)
	}
}

func TestFaulty(t *testing.T) {
	fates := func(seed uint64, f rpctest.CallFaults) (out []string) {
		synctest.Test(t, func(t *testing.T) {
			p := rpctest.WithFaults(rpc.NewMemPlane(), seed, f)
			stop := serveMem(t, p, "w", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
				for range 4 {
					if err := send(nil); err != nil {
						return err
					}
				}
				return nil
			})
			for range 200 {
				n := 0
				err := p.Call(t.Context(), "w", "m", nil, func([]byte) error { n++; return nil })
				fate := string(rune('0' + n))
				switch {
				case err != nil && fault.CodeOf(err) != fault.Unavailable:
					t.Fatalf("seed %d: %v", seed, err)
				case err != nil:
					fate += "!"
				case n != 4:
					t.Fatalf("seed %d: %d frames and no error", seed, n)
				}
				out = append(out, fate)
			}
			stop()
		})
		return out
	}
	count := func(fates []string) map[string]int {
		m := map[string]int{}
		for _, f := range fates {
			m[f]++
		}
		return m
	}

	f := rpctest.CallFaults{Refuse: 0.2, Cut: 0.5, CutAfter: 4}
	a := fates(1, f)
	seen := count(a)
	for _, fate := range []string{"0!", "1!", "2!", "3!", "4!", "4"} {
		if seen[fate] == 0 {
			t.Errorf("no call ended as %q: %v", fate, seen)
		}
	}
	if b := fates(1, f); strings.Join(a, " ") != strings.Join(b, " ") {
		t.Errorf("one seed, two stories:\n%v\n%v", a, b)
	}
	if b := fates(2, f); strings.Join(a, " ") == strings.Join(b, " ") {
		t.Error("two seeds, one story")
	}
	if seen := count(fates(3, rpctest.CallFaults{Refuse: 1})); seen["0!"] != 200 {
		t.Errorf("with Refuse 1: %v", seen)
	}
	if seen := count(fates(3, rpctest.CallFaults{Delay: time.Minute})); seen["4"] != 200 {
		t.Errorf("with delays alone: %v", seen)
	}
}

func TestFaultyDelayEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rpctest.WithFaults(rpc.NewMemPlane(), 1, rpctest.CallFaults{Delay: 1000 * time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := p.Call(ctx, "w", "m", nil, nil); err != context.DeadlineExceeded {
			t.Errorf("error %v, want context.DeadlineExceeded", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("Call returned after %v, want 1s", d)
		}
	})
}
