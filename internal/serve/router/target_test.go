package router

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/obs"
)

// targeting returns a router of mode time with targets. Nothing is learned yet: a prefill takes 10 ms and 0.02 ms a
// token. It runs in a bubble.
func targeting(t *testing.T, workers int, targets route.Targets, miss route.MissPolicy, log *slog.Logger) *Router {
	t.Helper()
	cfg := Config{Route: route.Config{Mode: route.Time, Targets: targets, OnMiss: miss}, PredictedTTL: new(time.Duration(0))}
	r, err := New(cfg, Planes{}, nil, obs.NewMetrics(), log)
	if err != nil {
		t.Fatal(err)
	}
	r.setInstances(batching(t, workers, 4))
	return r
}

func askingFor(id string, tokens int) *route.Request {
	return &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: make([]kv.Token, tokens)}
}

// TestRefusesMissedTarget: a request which no worker can answer in time is refused at once, with the time until one
// could.
func TestRefusesMissedTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := targeting(t, 2, route.Targets{TTFT: 100 * time.Millisecond}, route.MissRefuses, slog.New(slog.DiscardHandler))
		for i := range 2 { // 2.01 s each
			big := askingFor(fmt.Sprint(i), 100_000)
			big.Override.TTFTTarget = new(0.0)
			if _, err := r.Route(t.Context(), big); err != nil {
				t.Fatal(err)
			}
		}
		_, err := r.Route(t.Context(), askingFor("late", 100))
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Code != fault.Overloaded || f.RetryAfter != 2*time.Second || !strings.Contains(f.Error(), "target of 100ms") {
			t.Errorf("refused with %v", err)
		}
		patient := askingFor("patient", 100)
		patient.Override.TTFTTarget = new(5000.0)
		if _, err := r.Route(t.Context(), patient); err != nil {
			t.Errorf("its own target is met, and it is refused: %v", err)
		}
		if n, _ := r.queueTotals(); n != 0 {
			t.Errorf("%d requests wait", n)
		}
	})
}

// TestMissedTargetWaits: a request which no worker can answer in time waits until a worker has no prefill queued, and
// later requests which can meet their target go first.
func TestMissedTargetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := targeting(t, 1, route.Targets{TTFT: 100 * time.Millisecond}, route.MissWaits, slog.New(slog.DiscardHandler))
		big := askingFor("big", 100_000)
		big.Override.TTFTTarget = new(0.0)
		if _, err := r.Route(t.Context(), big); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []string
		var clients sync.WaitGroup
		ask := func(id string, target float64) {
			req := askingFor(id, 100)
			if target > 0 {
				req.Override.TTFTTarget = &target
			}
			clients.Go(func() {
				if _, err := r.Route(t.Context(), req); err != nil {
					t.Errorf("%s: %v", id, err)
				}
				mu.Lock()
				order = append(order, id)
				mu.Unlock()
			})
			synctest.Wait()
		}
		ask("missed", 0)
		ask("in time", 5000)
		if n, _ := r.queueTotals(); n != 1 {
			t.Errorf("%d requests wait, want the one which misses its target", n)
		}
		time.Sleep(200 * time.Millisecond) // in the bubble
		r.RecordFirstToken("big", 1, 0)
		synctest.Wait()
		if n, _ := r.queueTotals(); n != 1 {
			t.Errorf("%d requests wait while a prefill is queued", n)
		}
		r.RecordFirstToken("in time", 1, 0)
		clients.Wait()
		if got := strings.Join(order, ", "); got != "in time, missed" {
			t.Errorf("the order is %s", got)
		}
		for _, id := range []string{"big", "in time", "missed"} {
			r.FreeReservation(id, 1, 0)
		}
		idle(t, r)
	})
}

// TestMissedTargetEndsWithPatience: a request which misses its target does not wait for ever.
func TestMissedTargetEndsWithPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := targeting(t, 1, route.Targets{ITL: time.Millisecond}, route.MissWaits, slog.New(slog.DiscardHandler))
		first := askingFor("first", 10)
		first.Override.ITLTarget = new(0.0)
		if _, err := r.Route(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := r.Route(t.Context(), askingFor("slow", 10))
			done <- err
		}()
		synctest.Wait()
		time.Sleep(29 * time.Second) // in the bubble
		r.RecordOutput("first", 1, 4)
		r.RecordFirstToken("first", 1, 0)
		synctest.Wait()
		if n, _ := r.queueTotals(); n != 1 {
			t.Errorf("%d requests wait", n)
		}
		time.Sleep(2 * time.Second)
		r.FreeReservation("first", 1, 0)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestBurstOfAClient: while a client has many requests waiting, one of another client is the next to be placed.
func TestBurstOfAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := queueing(t, 1, 0, queue.Config{})
		var mu sync.Mutex
		var order []string
		var clients sync.WaitGroup
		ask := func(id string, client uint64) {
			req := asking(id)
			req.Client = client
			clients.Go(func() {
				if _, err := r.Route(t.Context(), req); err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				mu.Lock()
				order = append(order, id)
				mu.Unlock()
				r.MarkPrefilled(id, 1, 0)
				r.FreeReservation(id, 1, 0)
			})
			synctest.Wait()
		}
		blocker := asking("blocker")
		if _, err := r.Route(t.Context(), blocker); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			ask(fmt.Sprint("a", i), 1)
		}
		ask("b0", 2)
		ask("b1", 2)
		r.MarkPrefilled("blocker", 1, 0)
		clients.Wait()
		if got, want := strings.Join(order[:5], " "), "a0 b0 a1 b1 a2"; got != want {
			t.Errorf("the order is %s, want %s", got, want)
		}
		r.FreeReservation("blocker", 1, 0)
		idle(t, r)
	})
}

// TestLogsTTFTOnce: predictions which are off by more than half are logged once, with what to do.
func TestLogsTTFTOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		r := targeting(t, 1, route.Targets{}, "", slog.New(slog.NewTextHandler(&out, nil)))
		for i := range 100 {
			id := fmt.Sprint(i)
			if _, err := r.Route(t.Context(), askingFor(id, 10)); err != nil {
				t.Fatal(err)
			}
			wait := 10 * time.Millisecond
			if i%3 == 0 { // other load, which no line can learn
				wait = 3 * time.Second
			}
			time.Sleep(wait) // in the bubble
			r.RecordFirstToken(id, 1, 0)
			r.FreeReservation(id, 1, 5)
		}
		if n := strings.Count(out.String(), "do not come when predicted"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, out.String())
		}
		if !strings.Contains(out.String(), "remedy=") {
			t.Errorf("the log does not say what to do:\n%s", out.String())
		}
		table := r.workerTable()
		if s := table[0].Speed; s == nil || s.FirstTokens != 100 || !s.Off || s.TTFTError < 50 {
			t.Errorf("the worker's row has %+v", s)
		}
		d, err := r.decisions.findRequest("99")
		if a := d.Attempts[0]; err != nil || a.PredictedTTFT == nil || a.ObservedTTFT == nil || *a.ObservedTTFT != 3000 {
			t.Errorf("the decision says %+v, %v", a, err)
		}
		rows := r.ttftRows()
		if row := rows[kv.Worker{ID: 1}]; row.count != 100 || row.observed < 100 || row.counts[len(ttftBounds)]+row.counts[0] == 0 {
			t.Errorf("the metrics have %+v", row)
		}
	})
}
