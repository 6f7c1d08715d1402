package frontend

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/internal/engine"
)

var errGone = fault.New(fault.Unavailable, "gone")

// moving is a request whose answer is "hello", however often it moves.
const moving = `{"model":"bytes","prompt":"hi"}`

func complete(a answerOf) bool { return a.status == 200 && strings.Contains(a.body, `"text":"hello"`) }

// TestPlannedMoves: draining workers do not count against the limit; another bound applies.
func TestPlannedMoves(t *testing.T) {
	for _, code := range []error{fault.New(fault.Draining, "leaving"), errGone} {
		inWorld(t, Config{MigrationLimit: new(0), MigrationWait: new(time.Duration(0))}, func(t *testing.T, w *world) {
			for id := kv.WorkerID(1); id <= 5; id++ {
				w.worker(id, &script{say: func(int) string { return "hello" }, dieAfter: 1, dieWith: code})
			}
			started := time.Now()
			a := w.post("/v1/completions", moving)
			w.worker(6, constant("hello"))
			if planned := fault.CodeOf(code) == fault.Draining; complete(a) || time.Since(started) != 0 || len(w.router.routed()) != map[bool]int{true: 6, false: 1}[planned] {
				t.Errorf("%v: %d %s after %d questions and %v", code, a.status, a.body, len(w.router.routed()), time.Since(started))
			}
			if strings.Contains(a.body, "draining") || !strings.Contains(a.body, `"code":"unavailable"`) {
				t.Errorf("the client is told %s", a.body)
			}
		})
	}
	inWorld(t, Config{MigrationLimit: new(0)}, func(t *testing.T, w *world) {
		for id := kv.WorkerID(1); id <= 80; id++ {
			w.worker(id, &script{refuse: fault.New(fault.Draining, "leaving")})
		}
		a := w.post("/v1/completions", moving)
		if n := len(w.router.routed()); a.status != 503 || n != 64 {
			t.Errorf("%d after %d attempts, want %d", a.status, n, 64)
		}
	})
}

// TestPace: the first further attempt starts at once, the next ones after waits.
func TestPace(t *testing.T) {
	inWorld(t, Config{MigrationLimit: new(9)}, func(t *testing.T, w *world) {
		var at []time.Duration
		started := time.Now()
		for id := kv.WorkerID(1); id <= 12; id++ {
			w.worker(id, &script{veto: func(*engine.Request) error {
				at = append(at, time.Since(started))
				return errGone
			}})
		}
		if a := w.post("/v1/completions", moving); a.status != 503 || len(at) != 10 {
			t.Fatalf("%d after %d attempts", a.status, len(at))
		}
		if at[1] != at[0] {
			t.Errorf("the second attempt is %v after the first", at[1]-at[0])
		}
		for i, least := 2, 20*time.Millisecond; i < len(at); i, least = i+1, min(2*least, time.Second) {
			if d := at[i] - at[i-1]; d < least || d > least*3/2 {
				t.Errorf("attempt %d comes after %v, want %v and up to a half more", i+1, d, least)
			}
		}
	})
}

// TestWaitsForAWorker: a request that lost its worker continues as soon as there is an eligible one: a
// new one, the same one in a new epoch, or after a while even the same one.
func TestWaitsForAWorker(t *testing.T) {
	for name, tt := range map[string]struct {
		comes func(w *world)
	}{
		"another":  {func(w *world) { w.worker(2, constant("hello")) }},
		"new life": {func(w *world) { w.reborn(1, constant("hello")) }},
	} {
		for _, die := range []int{0, 2} { // before the first token, and after some
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				s := &script{say: func(int) string { return "hello" }, dieAfter: die}
				if die == 0 {
					s.refuse = errGone
				}
				w.worker(1, s)
				came := make(chan answerOf, 1)
				started := time.Now()
				// Once the first worker has the request there is no worker to choose.
				s.veto = func(*engine.Request) error { w.router.pinned(9); return nil }
				go func() { came <- w.post("/v1/completions", moving) }()
				synctest.Wait()
				time.Sleep(3 * time.Second)
				w.router.pinned(0)
				tt.comes(w)
				a := <-came
				if d := time.Since(started); !complete(a) || d != 3*time.Second {
					t.Errorf("%s, die %d: after %v %d %s", name, die, d, a.status, a.body)
				}
			})
		}
	}
	inWorld(t, Config{}, func(t *testing.T, w *world) { // there is no other
		w.worker(1, &script{say: func(int) string { return "hello" }, dieAfter: 3})
		started := time.Now()
		a := w.post("/v1/completions", moving)
		if d := time.Since(started); !complete(a) || d < migrate.Reprieve || d > migrate.Reprieve+time.Second {
			t.Errorf("with one worker: after %v %d %s", d, a.status, a.body)
		}
	})
}

// reborn replaces a worker by its next epoch.
func (w *world) reborn(id kv.WorkerID, s *script) {
	w.worker(id, s)
	for _, in := range w.registry.instances() {
		if in.ID == id {
			in.Epoch = 2
			w.registry.set(in)
		}
	}
	synctest.Wait()
}

// TestWaitIsBounded: a request that waits in vain gets an error; one that never had a worker does not wait.
func TestWaitIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first *script
		wait  time.Duration
	}{
		{"lost before the first token", &script{refuse: errGone}, 10 * time.Second},
		{"lost after it", &script{say: func(int) string { return "hello" }, dieAfter: 1}, 10 * time.Second},
		{"left as planned", &script{refuse: fault.New(fault.Draining, "leaving")}, 10 * time.Second},
		{"full", &script{refuse: fault.New(fault.Overloaded, "full")}, 0},
		{"none", nil, 0},
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			w.worker(7, constant("hello")) // the catalog knows the model, the router no worker
			w.router.pinned(1)
			if tt.first != nil {
				tt.first.veto = func(*engine.Request) error { w.registry.remove(1); return nil }
				w.worker(1, tt.first)
			}
			started := time.Now()
			a := w.post("/v1/completions", moving)
			if d := time.Since(started); a.status != 503 || d != tt.wait {
				t.Errorf("%s: %d after %v, want %v: %s", tt.name, a.status, d, tt.wait, a.body)
			}
		})
	}
}

// TestLeaversAreLeft: a draining worker is not asked again, however long there is no other.
func TestLeaversAreLeft(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{refuse: fault.New(fault.Draining, "leaving")}
		w.worker(1, s)
		started := time.Now()
		a := w.post("/v1/completions", moving)
		if d := time.Since(started); a.status != 503 || d != 10*time.Second || len(s.seen()) != 1 {
			t.Errorf("after %v and %d calls: %d %s", d, len(s.seen()), a.status, a.body)
		}
	})
}

// TestFullSurvivors: a stream whose worker died does not fail because the other workers are full for
// the moment.
func TestFullSurvivors(t *testing.T) {
	inWorld(t, Config{MigrationLimit: new(1)}, func(t *testing.T, w *world) {
		w.worker(1, &script{say: func(int) string { return "hello" }, dieAfter: 2, interlude: func() { w.registry.remove(1) }})
		started := time.Now()
		for id := kv.WorkerID(2); id <= 4; id++ {
			s := constant("hello")
			s.veto = func(*engine.Request) error {
				if time.Since(started) < 4*time.Second {
					return fault.New(fault.Overloaded, "full")
				}
				return nil
			}
			w.worker(id, s)
		}
		a := w.post("/v1/completions", moving)
		if d := time.Since(started); !complete(a) || d < 4*time.Second || d > 5*time.Second {
			t.Errorf("after %v: %d %s", d, a.status, a.body)
		}
	})
}

// TestLeavesWhileWaiting: a client that disconnects while its request is between workers ends it at
// once.
func TestLeavesWhileWaiting(t *testing.T) {
	for _, stream := range []bool{false, true} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			w.worker(1, &script{say: func(int) string { return "hello" }, dieAfter: 2})
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				req := must(http.NewRequestWithContext(ctx, http.MethodPost, "http://penstock/v1/completions",
					strings.NewReader(fmt.Sprintf(`{"model":"bytes","prompt":"hi","stream":%v}`, stream))))
				if resp, err := w.client.Do(req); err == nil {
					read(resp)
				}
			}()
			time.Sleep(migrate.Reprieve / 2)
			synctest.Wait()
			if n := w.f.inflight.Load(); n != 1 || w.metric("frontend_waiting") != "1" {
				t.Fatalf("%d requests are in flight, %q wait", n, w.metric("frontend_waiting"))
			}
			leave()
			<-left
			synctest.Wait()
			if n := w.f.inflight.Load(); n != 0 {
				t.Errorf("%d requests are in flight after the client left", n)
			}
			if n := w.metric("frontend_waiting"); n != "0" {
				t.Errorf("%q wait after the client left", n)
			}
			if n := w.metric(`frontend_requests_total{endpoint="completions",model="bytes",status="499"}`); n != "1" {
				t.Errorf("%q requests are counted as left", n)
			}
		})
	}
}

// TestLateFrames: frames under the number of an earlier attempt are dropped.
func TestLateFrames(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, &script{say: func(int) string { return "hello" }, dieAfter: 2})
		next := constant("hello")
		for _, late := range []engine.Delta{
			{Attempt: 1, Accepted: true},
			{Attempt: 1, Pos: 2, Tokens: encodeBytes("XX")},
			{Attempt: 1, Pos: 4, Tokens: []kv.Token{byteEOS}, Finish: engine.FinishStop},
		} {
			next.raw = append(next.raw, engine.AppendDelta(nil, &late))
		}
		w.worker(2, next)
		if a := w.post("/v1/completions", moving); !complete(a) || !strings.Contains(a.body, `"completion_tokens":6`) {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// TestStaysAtItsWorker: a pinned request fails with its worker, and the error says why.
func TestStaysAtItsWorker(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, &script{say: func(int) string { return "hello" }, dieAfter: 2})
		w.worker(2, constant("hello"))
		started := time.Now()
		a := w.post("/v1/completions", moving, "x-worker-instance-id", "1")
		if a.status != 503 || !strings.Contains(a.body, "worker 1, which the request is pinned to") || time.Since(started) != 0 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// TestStrangerAtTheAddress: a worker that does not know the model was the model's worker when it was
// chosen: another worker continues.
func TestStrangerAtTheAddress(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, &script{refuse: fault.New(fault.NotFound, "it serves another model")})
		w.worker(2, constant("hello"))
		if a := w.post("/v1/completions", moving); !complete(a) {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}
