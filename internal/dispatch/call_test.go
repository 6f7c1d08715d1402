package dispatch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
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
	var last *route.Request
	task := func(pin kv.WorkerID, answer func(req *route.Request) error) *RoutedTask {
		return &RoutedTask{
			Route: route.Request{Model: "m", Pin: kv.Worker{ID: pin}}, Workers: someWorkers,
			dispatcher: &Dispatcher{Router: answers{answer: answer}},
		}
	}
	_, err := task(0, func(req *route.Request) error {
		last = req
		if asked++; len(req.Exclude) == 5 {
			return errNoWorker
		}
		return nil
	}).routeTask(t.Context(), 7, exclude, avoid, func(c *engine.Card) bool { return !c.Features })
	if err != nil || asked != 2 || last.Attempt != 7 || fmt.Sprint(last.Exclude) != "[9 4 2 3]" {
		t.Errorf("%v after %d questions, the last %+v", err, asked, last)
	}
	for _, tt := range []struct {
		pin  kv.WorkerID
		code fault.Code
	}{{0, fault.Unavailable}, {4, fault.NotFound}} {
		_, err := task(tt.pin, func(*route.Request) error { return errUnknown }).routeTask(t.Context(), 1, exclude, nil, nil)
		if fault.CodeOf(err) != tt.code {
			t.Errorf("pinned to %d: %v", tt.pin, err)
		}
	}
}

// someWorkers are workers 4 and 5, of which only 5 takes features, and the unfit worker 9.
func someWorkers() *catalog.Model {
	worker := func(id kv.WorkerID, features bool) *catalog.Worker {
		return &catalog.Worker{Instance: disco.Instance{ID: id}, Card: &engine.Card{Features: features}}
	}
	return &catalog.Model{Workers: []*catalog.Worker{worker(4, false), worker(5, true)}, Unfit: []kv.WorkerID{9}}
}
