package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// queueing returns a router of workers of model m that compute 100 tokens in a step; requests wait
// above threshold times that batch. It predicts nothing, because the prompts are alike. It runs in a
// bubble.
func queueing(t *testing.T, workers int, threshold float64, cfg queue.Config) *Router {
	t.Helper()
	r, err := New(Config{Route: route.Config{Mode: route.KV, QueueThreshold: &threshold}, Queue: cfg, PredictedTTL: new(time.Duration(0))}, Planes{}, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.setInstances(batching(t, workers, 4))
	return r
}

func batching(t *testing.T, workers, blockSize int) (list []disco.Instance) {
	t.Helper()
	for i := range workers {
		meta, err := engine.EncodeCard(engine.Card{
			Name: "m", BlockSize: blockSize, Ranks: 1, ContextLength: 1000, VocabSize: 100, MaxBatchedTokens: 100,
		})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, disco.Instance{Kind: disco.KindWorker, ID: kv.WorkerID(i + 1), Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta})
	}
	return list
}

// asking is a request of 80 tokens.
func asking(id string) *route.Request {
	return &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: make([]kv.Token, 80)}
}

// idle fails unless nothing waits and nothing is active.
func idle(t *testing.T, r *Router) {
	t.Helper()
	requests, tokens := r.queueTotals()
	if requests != 0 || tokens != 0 {
		t.Errorf("%d requests of %d tokens wait", requests, tokens)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.pools {
		if p.active.Len() != 0 {
			t.Errorf("%d reservations are left", p.active.Len())
		}
		for _, w := range p.router.Workers() {
			if l := p.active.LoadOf(w.Worker); l != (activeseq.Load{}) {
				t.Errorf("worker %v has %+v", w.Worker, l)
			}
		}
		if err := errors.Join(p.queue.Check(), p.active.Check()); err != nil {
			t.Error(err)
		}
	}
}

// TestFlood: 25 concurrent requests for 4 workers that take one prompt at a time, and 10 for one such worker:
// all are placed, no two prompts run together, and nothing is left.
func TestFlood(t *testing.T) {
	for _, c := range []struct{ requests, workers int }{{25, 4}, {10, 1}} {
		synctest.Test(t, func(t *testing.T) {
			r := queueing(t, c.workers, 0, queue.Config{})
			var mu sync.Mutex
			busy := map[kv.WorkerID]bool{}
			var clients sync.WaitGroup
			for i := range c.requests {
				clients.Go(func() {
					req := asking(fmt.Sprint(i))
					d, err := r.Route(t.Context(), req)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if busy[d.Worker.ID] {
						t.Errorf("worker %d got a second prompt", d.Worker.ID)
					}
					busy[d.Worker.ID] = true
					mu.Unlock()
					<-time.After(time.Second) // in the bubble
					mu.Lock()
					busy[d.Worker.ID] = false
					mu.Unlock()
					r.MarkPrefilled(req.ID, 1, 0)
					<-time.After(time.Second)
					r.FreeReservation(req.ID, 1, 0)
				})
			}
			start := time.Now()
			clients.Wait()
			rounds := (c.requests + c.workers - 1) / c.workers
			if took, want := time.Since(start), time.Duration(rounds+1)*time.Second; took != want {
				t.Errorf("%d requests on %d workers took %v, want %v", c.requests, c.workers, took, want)
			}
			idle(t, r)
		})
	}
}

// parked routes a request in a goroutine and waits until it is in the queue.
func parked(t *testing.T, ctx context.Context, r *Router, req *route.Request) <-chan outcome {
	t.Helper()
	before, _ := r.queueTotals()
	ch := make(chan outcome, 1)
	go func() {
		d, err := r.Route(ctx, req)
		ch <- outcome{d, err}
	}()
	synctest.Wait()
	if after, _ := r.queueTotals(); after != before+1 {
		t.Fatalf("%d wait, want %d", after, before+1)
	}
	return ch
}

// TestExplainSaysWhatWouldWait: the explanation says that the request would wait first, beside the
// worker that could be chosen.
func TestExplainSaysWhatWouldWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		expect := func(when string, want *explainedWait) {
			t.Helper()
			ac, err := r.explainRequest(t.Context(), asking("question"))
			if err != nil {
				t.Fatal(err)
			}
			if got := newExplainAnswer(&ac).Waits; (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		expect("idle", nil)
		mustRoute(t, r, asking("a"))
		expect("full", &explainedWait{0})
		b := parked(t, t.Context(), r, asking("b"))
		expect("with one that waits", &explainedWait{1})
		r.FreeReservation("a", 1, 0)
		if o := <-b; o.err != nil {
			t.Fatal(o.err)
		}
		r.MarkPrefilled("b", 1, 0)
		expect("computed", nil)
		r.FreeReservation("b", 1, 0)
		idle(t, r)
	})
}

type outcome struct {
	d   route.Decision
	err error
}

func mustRoute(t *testing.T, r *Router, req *route.Request) route.Decision {
	t.Helper()
	d, err := r.Route(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAbandonedWait: a request whose client disconnects while it waits leaves nothing, is never placed
// later, and does not block the ones after it.
func TestAbandonedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		mustRoute(t, r, asking("first"))
		ctx, cancel := context.WithCancel(t.Context())
		gone := parked(t, ctx, r, asking("gone"))
		late, end := context.WithTimeout(t.Context(), 5*time.Second)
		defer end()
		slow := parked(t, late, r, asking("slow"))
		next := parked(t, t.Context(), r, asking("next"))
		cancel()
		if o := <-gone; fault.CodeOf(o.err) != fault.Canceled || o.err == nil {
			t.Errorf("a client that went away: %v", o.err)
		}
		if o := <-slow; fault.CodeOf(o.err) != fault.Deadline || o.err == nil {
			t.Errorf("a client without time: %v", o.err)
		}
		r.MarkPrefilled("first", 1, 0)
		if o := <-next; o.err != nil {
			t.Error(o.err)
		}
		r.FreeReservation("first", 1, 0)
		r.FreeReservation("next", 1, 0)
		idle(t, r)
	})
}

// TestAbandonedWhenPlaced: a client that disconnects at the moment when its request is placed leaves no
// reservation, and the next request gets the place.
func TestAbandonedWhenPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		mustRoute(t, r, asking("first"))
		p, _ := r.findPool("m")
		req := asking("second")
		q := route.Query{Key: activeseq.AttemptKey{ID: req.ID, Attempt: 1}, PromptTokens: 80}
		r.mu.Lock()
		_, w, err := r.placeLocked(p, &q, req)
		r.mu.Unlock()
		if err != nil || w == nil {
			t.Fatalf("placed beside another prompt: %v", err)
		}
		next := parked(t, t.Context(), r, asking("third"))
		r.FreeReservation("first", 1, 0)
		if w.decision.Worker.ID != 1 {
			t.Fatal("not placed")
		}
		r.abandonWait(p, w)
		if o := <-next; o.err != nil {
			t.Error(o.err)
		}
		r.FreeReservation("third", 1, 0)
		idle(t, r)
	})
}

// TestOrderOfWaiting: strict priority first, then arrival order, with arrival earlier by the priority
// jump.
func TestOrderOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		mustRoute(t, r, asking("0"))
		priorities := map[string]queue.Priority{"b": {}, "c": {}, "jumped": {Jump: time.Minute}, "strict": {Strict: 1}}
		results := map[string]<-chan outcome{}
		for _, id := range []string{"b", "c", "jumped", "strict"} {
			req := asking(id)
			req.Priority = priorities[id]
			results[id] = parked(t, t.Context(), r, req)
			<-time.After(time.Second)
		}
		var order []string
		for current := "0"; len(order) < 4; current = order[len(order)-1] {
			r.FreeReservation(current, 1, 0)
			synctest.Wait()
			for id, ch := range results {
				select {
				case o := <-ch:
					if o.err != nil {
						t.Fatal(o.err)
					}
					order = append(order, id)
					delete(results, id)
				default:
				}
			}
		}
		if want := []string{"strict", "jumped", "b", "c"}; !slices.Equal(order, want) {
			t.Errorf("placed in order %v, want %v", order, want)
		}
		r.FreeReservation("c", 1, 0)
		idle(t, r)
	})
}

// TestFullWaitingRoom: one request beyond the queue's bound is refused with a Retry-After.
func TestFullWaitingRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{MaxEntries: 2})
		mustRoute(t, r, asking("0"))
		ctx, cancel := context.WithCancel(t.Context())
		a, b := parked(t, ctx, r, asking("a")), parked(t, ctx, r, asking("b"))
		_, err := r.Route(t.Context(), asking("c"))
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Code != fault.Overloaded || f.RetryAfter < time.Second || f.Code.Class().Status != 503 {
			t.Errorf("the third: %v", err)
		}
		cancel()
		<-a
		<-b
		r.FreeReservation("0", 1, 0)
		idle(t, r)
	})
}

// TestPinnedWaitsAlone: a request that waits for one worker does not delay others, and a migrated
// request does not wait.
func TestPinnedWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 2, 0, queue.Config{})
		first := mustRoute(t, r, asking("0"))
		pinned := asking("pinned")
		pinned.Pin = first.Worker
		pinned.Priority.Strict = 9
		waits := parked(t, t.Context(), r, pinned)
		if d := mustRoute(t, r, asking("free")); d.Worker == first.Worker {
			t.Error("placed beside another prompt")
		}
		moving := asking("0")
		moving.Attempt = 2
		mustRoute(t, r, moving)
		r.FreeReservation("0", 1, 0)
		r.FreeReservation("0", 2, 0)
		if o := <-waits; o.err != nil || o.d.Worker != first.Worker {
			t.Errorf("the pinned one: %+v", o)
		}
		r.FreeReservation("pinned", 1, 0)
		r.FreeReservation("free", 1, 0)
		idle(t, r)
	})
}

// TestWaitingWithoutWorkers: no request waits when there is no worker; waiting ones fail when the last
// worker is removed; a new worker with another block size takes them over.
func TestWaitingWithoutWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		mustRoute(t, r, asking("0"))
		a := parked(t, t.Context(), r, asking("a"))
		r.setInstances(nil)
		if o := <-a; fault.CodeOf(o.err) != fault.Unavailable || o.err == nil {
			t.Errorf("when the last worker left: %v", o.err)
		}
		if _, err := r.Route(t.Context(), asking("b")); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("without workers: %v", err)
		}
		idle(t, r)

		r.setInstances(batching(t, 1, 4))
		mustRoute(t, r, asking("c"))
		d := parked(t, t.Context(), r, asking("d"))
		r.setInstances(batching(t, 1, 8))
		if o := <-d; o.err != nil || o.d.BlockSize != 8 {
			t.Errorf("with another block size: %+v", o)
		}
		r.FreeReservation("d", 1, 0)
		idle(t, r)
	})
}

// TestTimerAdmits: the upkeep notices changes that send no notice.
func TestTimerAdmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.runMaintenance(ctx) }()
		mustRoute(t, r, asking("leaked"))
		a := parked(t, t.Context(), r, asking("a"))
		start := time.Now()
		if o := <-a; o.err != nil {
			t.Error(o.err)
		}
		if took := time.Since(start); took < r.cfg.ReservationTTL || took > r.cfg.ReservationTTL+2*upkeep {
			t.Errorf("placed after %v", took)
		}
		r.FreeReservation("a", 1, 0)
		cancel()
		<-done
		idle(t, r)
	})
}

// TestQueueUnderChurn: clients of all kinds connect, wait, disconnect and are served while workers are
// added, removed and change their block size. Each request ends once, none waits for ever, and in the
// end nothing is left.
func TestQueueUnderChurn(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := queueing(t, 3, 0.5, queue.Config{MaxEntries: 30, Patience: 2 * time.Second})
			ctx, stop := context.WithCancel(t.Context())
			upkept := make(chan struct{})
			go func() { defer close(upkept); r.runMaintenance(ctx) }()
			rng := splitmix.Source(seed)
			codes := map[fault.Code]int{}
			placed := 0
			var mu sync.Mutex
			var clients sync.WaitGroup
			for i := range 400 {
				req := asking(fmt.Sprint(i))
				req.Priority = queue.Priority{Strict: uint32(rng.Below(3)), Jump: time.Duration(rng.Below(5)) * time.Second}
				switch rng.Below(6) {
				case 0:
					req.Pin = kv.Worker{ID: kv.WorkerID(1 + rng.Below(4))}
				case 1:
					req.Allowed = []kv.WorkerID{kv.WorkerID(1 + rng.Below(3)), kv.WorkerID(1 + rng.Below(3))}
				case 2:
					req.Attempt = 2 // it moves
				case 3:
					req.Session.ID = fmt.Sprint(rng.Below(5))
				}
				prefill, decode := time.Duration(1+rng.Below(300))*time.Millisecond, time.Duration(rng.Below(500))*time.Millisecond
				patience := time.Duration(1+rng.Below(4000)) * time.Millisecond
				clients.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					_, err := r.Route(ctx, req)
					mu.Lock()
					if err == nil {
						placed++
					} else {
						codes[fault.CodeOf(err)]++
					}
					mu.Unlock()
					if err != nil {
						return
					}
					<-time.After(prefill)
					r.MarkPrefilled(req.ID, req.Attempt, 0)
					<-time.After(decode)
					r.FreeReservation(req.ID, req.Attempt, 0)
				})
				<-time.After(time.Duration(rng.Below(60)) * time.Millisecond)
				if rng.Below(40) == 0 {
					r.setInstances(batching(t, min(3, rng.Below(8)), 4+4*rng.Below(2)))
				}
			}
			r.setInstances(batching(t, 3, 4))
			clients.Wait()
			idle(t, r)
			t.Logf("seed %d: %d placed, refused %v", seed, placed, codes)
			for code := range codes {
				switch code {
				case fault.Deadline, fault.Overloaded, fault.Unavailable, fault.NotFound, fault.Ineligible:
				default:
					t.Errorf("seed %d: %d requests ended with %v", seed, codes[code], code)
				}
			}
			if placed < 50 {
				t.Errorf("seed %d: %d of 400 were placed", seed, placed)
			}
			stop()
			<-upkept
		})
	}
}

// TestBusyWhileWaiting: waiting requests continue to wait while workers are busy, so new ones are
// refused.
func TestBusyWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		p, _ := r.findPool("m")
		if err := p.router.SetBusyThresholds(route.BusyThresholds{PrefillTokens: 100}); err != nil {
			t.Fatal(err)
		}
		mustRoute(t, r, asking("first"))
		waits := parked(t, t.Context(), r, asking("waits"))
		moving := asking("moving")
		moving.Attempt = 2
		mustRoute(t, r, moving)
		r.runUpkeep()
		pinned := asking("pinned")
		pinned.Pin = kv.Worker{ID: 1}
		if _, err := r.Route(t.Context(), pinned); fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("a newcomer: %v", err)
		}
		if n, _ := r.queueTotals(); n != 1 {
			t.Fatalf("%d wait, want 1", n)
		}
		r.FreeReservation("first", 1, 0)
		r.FreeReservation("moving", 2, 0)
		if o := <-waits; o.err != nil {
			t.Error(o.err)
		}
		r.FreeReservation("waits", 1, 0)
		idle(t, r)
	})
}
