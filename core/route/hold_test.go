package route

import (
	"fmt"
	"math"
	"testing"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// echo numbers reservations; the test says when they are back.
type echo struct{ last uint64 }

func (e *echo) OnReserved(activeseq.ReservationRef) uint64 { e.last++; return e.last }
func (*echo) OnPrefilled(uint64)                           {}
func (*echo) OnGrown(uint64, int)                          {}
func (*echo) OnFreed(uint64)                               {}

// TestTurns: routers which get their requests at the same instants place them in turns, of one and a half times the time
// after which they hear of each other, unless the turns take longer than what they save. A request which has waited for
// its turn does not wait again.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		name    string
		workers int
		delay   time.Duration // until reservations are back; 0 if they are not
		lag     time.Duration // of the others' requests
		place   int
		mode    Mode
		change  func(*Query)
		want    time.Duration
	}{
		{"the first", 8, 2 * time.Millisecond, time.Millisecond, 0, Time, nil, 0},
		{"the second", 8, 2 * time.Millisecond, time.Millisecond, 1, Time, nil, 3 * time.Millisecond},
		{"the last", 8, 2 * time.Millisecond, time.Millisecond, 3, Time, nil, 9 * time.Millisecond},
		{"a collision is as unlikely as it is among 256 workers", 256, 2 * time.Millisecond, time.Millisecond, 3, Time, nil, 0},
		{"requests of other instants", 8, 2 * time.Millisecond, 500 * time.Millisecond, 3, Time, nil, 0},
		{"a plane which brings nothing back", 8, 0, time.Millisecond, 3, Time, nil, 0},
		{"another mode", 8, 2 * time.Millisecond, time.Millisecond, 3, KV, nil, 0},
		{"a weight, which mode KV has", 8, 2 * time.Millisecond, time.Millisecond, 3, Time, func(q *Query) { q.Override.OverlapWeight = new(1.0) }, 0},
		{"another mode of one request", 8, 2 * time.Millisecond, time.Millisecond, 3, Time, func(q *Query) { q.Override.Mode = new(RoundRobin) }, 0},
		{"a request for one worker", 8, 2 * time.Millisecond, time.Millisecond, 3, Time, func(q *Query) { q.Pin = kv.Worker{ID: 1} }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &echo{}
			active, err := activeseq.New(activeseq.Config{BlockSize: 16, Journal: e})
			if err != nil {
				t.Fatal(err)
			}
			r, err := New(Config{Mode: c.mode}, active)
			if err != nil {
				t.Fatal(err)
			}
			var targets []Target
			for i := range c.workers {
				targets = append(targets, Target{Worker: kv.Worker{ID: kv.WorkerID(i + 1)}, BlockSize: 16, Blocks: 1000, State: Ready})
			}
			if err := r.SetWorkers(targets); err != nil {
				t.Fatal(err)
			}
			r.SetRouters(4, c.place)
			now := kv.Mono(0)
			query := func() *Query {
				return &Query{Key: activeseq.AttemptKey{ID: fmt.Sprint(e.last), Attempt: 1}, PromptTokens: 2000}
			}
			for range 30 {
				now = now.Add(time.Second)
				arrived := now
				now = max(now, r.HoldUntil(now, now, query()))
				if until := r.HoldUntil(now, arrived, query()); until > now {
					t.Fatalf("a request which arrived at %v waits until %v, and then until %v", arrived, now, until)
				}
				q := query()
				if _, err := r.Pick(now, q); err != nil {
					t.Fatal(err)
				}
				for i := range 3 {
					active.AdoptReservation(arrived.Add(c.lag), activeseq.Reservation{Worker: targets[i].Worker, PromptTokens: 2000, PrefillTokens: 2000}).Free()
				}
				if c.delay > 0 {
					active.MarkPublished(now.Add(c.delay), e.last)
				}
				active.Free(q.Key)
			}
			now = now.Add(time.Second)
			q := query()
			if c.change != nil {
				c.change(q)
			}
			if got := max(r.HoldUntil(now, now, q).Sub(now), 0); got != c.want {
				t.Errorf("a request waits %v, want %v", got, c.want)
			}
		})
	}
}

// TestShareOfOthers: without turns all other routers place at the same time, with a turn for each one none does.
func TestShareOfOthers(t *testing.T) {
	for _, c := range []struct {
		routers, count int
		want           float64
	}{{1, 1, 1}, {4, 1, 1}, {4, 2, 1. / 3}, {4, 4, 0}, {7, 3, 2. / 9}} {
		if got := (&turns{routers: c.routers, count: c.count}).shareOfOthers(); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%d routers in %d turns: %g, want %g", c.routers, c.count, got, c.want)
		}
	}
}
