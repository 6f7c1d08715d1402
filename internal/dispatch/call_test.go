package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
)

// plane is a worker that sends frames and then ends.
type plane func(ctx context.Context, recv func([]byte) error) error

func (p plane) Call(ctx context.Context, _, _ string, _ []byte, recv func([]byte) error) error {
	return p(ctx, recv)
}

// TestCall: a worker's silence ends a call, a slow receiver does not.
func TestCall(t *testing.T) {
	silent := func(ctx context.Context, _ func([]byte) error) error { <-ctx.Done(); return ctx.Err() }
	for name, tt := range map[string]struct {
		plane plane
		takes time.Duration
		took  time.Duration
		err   string
	}{
		"silent": {silent, 0, time.Second, "worker 3 sent nothing for 1s"},
		"silent in between": {func(ctx context.Context, recv func([]byte) error) error {
			return errors.Join(recv(nil), silent(ctx, recv))
		}, time.Minute, time.Minute + time.Second, "worker 3 sent nothing for 1s"},
		"slowly taken": {func(ctx context.Context, recv func([]byte) error) error {
			return errors.Join(recv(nil), recv(nil), ctx.Err())
		}, time.Minute, 2 * time.Minute, "worker 3 ended its answer early"},
		"failed": {func(context.Context, func([]byte) error) error { return errGone }, 0, 0, "gone"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := CallWorker(t.Context(), tt.plane, time.Second, route.Decision{Worker: kv.Worker{ID: 3}}, "m", nil, func([]byte) error {
				time.Sleep(tt.takes) // virtual time (synctest): the caller holds the frame so long
				return nil
			})
			if took := time.Since(began); err == nil || err.Error() != tt.err || took != tt.took || fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("%s: %v after %v, want %s after %v", name, err, took, tt.err, tt.took)
			}
		})
	}
}

// answers is a scripted router.
type answers struct {
	Router
	answer func(req *route.Request) error
}

func (a answers) Route(_ context.Context, req *route.Request) (route.Decision, error) {
	return route.Decision{}, a.answer(req)
}

// TestRoute: a worker to avoid is better than none, and an unknown model has no worker.
func TestRoute(t *testing.T) {
	avoid, exclude := []kv.WorkerID{1}, []kv.WorkerID{2, 3}
	asked := 0
	req := &route.Request{Model: "m"}
	_, err := RouteAvoiding(t.Context(), answers{answer: func(req *route.Request) error {
		if asked++; len(req.Exclude) == 3 {
			return errNobody
		}
		return nil
	}}, req, avoid, exclude)
	if err != nil || asked != 2 || len(req.Exclude) != 2 {
		t.Errorf("%v after %d questions, the last without %v", err, asked, req.Exclude)
	}
	for _, tt := range []struct {
		pin  kv.WorkerID
		code fault.Code
	}{{0, fault.Unavailable}, {4, fault.NotFound}} {
		req := &route.Request{Model: "m", Pin: kv.Worker{ID: tt.pin}}
		_, err := RouteAvoiding(t.Context(), answers{answer: func(*route.Request) error { return errUnknown }}, req, nil, exclude)
		if fault.CodeOf(err) != tt.code {
			t.Errorf("pinned to %d: %v", tt.pin, err)
		}
	}
}
