package activeseq_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// TestUnheard: routers which get their requests at the same instants expect each other's; routers whose requests come
// at other times expect none.
func TestUnheard(t *testing.T) {
	for _, c := range []struct {
		name   string
		lag    time.Duration // of the reservations of others
		ratio  int           // of theirs to one of this router
		expect float64
	}{
		{"together", 5 * time.Millisecond, 3, 3},
		{"apart", 50 * time.Millisecond, 3, 0},
		{"alone", 5 * time.Millisecond, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, err := activeseq.New(activeseq.Config{BlockSize: 16})
			if err != nil {
				t.Fatal(err)
			}
			w, now := kv.Worker{ID: 1}, kv.Mono(0)
			for burst := range 40 {
				now = now.Add(time.Second)
				own := 1 + burst%3
				for i := range own {
					if err := table.Reserve(now, activeseq.AttemptKey{ID: fmt.Sprint(burst, " ", i)}, w, activeseq.Demand{PromptTokens: 100}); err != nil {
						t.Fatal(err)
					}
				}
				for range own * c.ratio {
					table.AdoptReservation(now.Add(c.lag), activeseq.Reservation{Worker: w, PromptTokens: 200, PrefillTokens: 200})
				}
			}
			now = now.Add(time.Second)
			u := table.UnheardAt(now, 1)
			if d := u.Requests - c.expect; d < -0.1 || d > 0.01 { // less what comes in such a time anyway
				t.Errorf("%v requests are expected of the others, want %v", u.Requests, c.expect)
			}
			if d := u.Next - c.expect; d < -0.1 || d > 0.01 || u.Mirrored != 0 {
				t.Errorf("%+v: nothing is placed yet, so %v are next", u, c.expect)
			}
			if d := u.Tokens - 200*c.expect; d < -20 || d > 1 {
				t.Errorf("%v tokens are expected of the others, want %v", u.Tokens, 200*c.expect)
			}
			// What is heard is no longer unheard, and the second request of an instant expects the others' second ones.
			if err := table.Reserve(now, activeseq.AttemptKey{ID: "first"}, w, activeseq.Demand{PromptTokens: 100, ExpectedPrefill: time.Second}); err != nil {
				t.Fatal(err)
			}
			if u := table.UnheardAt(now, 1); c.expect > 0 && (u.Requests < 2*c.expect-0.2 || u.Requests > 2*c.expect+0.1) {
				t.Errorf("%v requests are expected after one, want %v", u.Requests, 2*c.expect)
			}
			if u := table.UnheardAt(now, 1); u.Mirrored < c.expect-0.1 || u.Mirrored > c.expect+0.1 || table.BurstPrefillAt(table.RefTo(w)) != time.Second {
				t.Errorf("%+v, %v: the others are not taken to place as this one did", u, table.BurstPrefillAt(table.RefTo(w)))
			}
			for range 2 * c.ratio {
				table.AdoptReservation(now, activeseq.Reservation{Worker: w, PromptTokens: 200, PrefillTokens: 200})
			}
			if u := table.UnheardAt(now, 1); u.Requests > 0.1 {
				t.Errorf("%v requests are expected after all were heard of", u.Requests)
			}
			if err := table.Reserve(now.Add(time.Second), activeseq.AttemptKey{ID: "later"}, kv.Worker{ID: 2}, activeseq.Demand{PromptTokens: 100}); err != nil {
				t.Fatal(err)
			}
			if d := table.BurstPrefillAt(table.RefTo(w)); d != 0 {
				t.Errorf("%v were placed in another burst", d)
			}
		})
	}
}

// TestUsualRateIsNoBurst: routers whose requests come at random times expect none of each other's at the time of their
// own, however many there are.
func TestUsualRateIsNoBurst(t *testing.T) {
	table, err := activeseq.New(activeseq.Config{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	draw := rand.New(rand.NewPCG(1, 2))
	w, now := kv.Worker{ID: 1}, kv.Mono(0)
	for i := range 20_000 { // 500 a second of each of four routers
		now = now.Add(time.Duration(draw.ExpFloat64() * float64(500*time.Microsecond)))
		if i%4 == 0 {
			if err := table.Reserve(now, activeseq.AttemptKey{ID: fmt.Sprint(i)}, w, activeseq.Demand{PromptTokens: 100}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		table.AdoptReservation(now, activeseq.Reservation{Worker: w, PromptTokens: 200, PrefillTokens: 200})
	}
	if b := table.BurstAt(now); b.Ratio > 0.5 {
		t.Errorf("%.2f requests of others are expected for each one here, want about 0", b.Ratio)
	}
}

// TestBurst: requests within 10 ms of the first one are a burst, and for longer if they are held.
func TestBurst(t *testing.T) {
	table, err := activeseq.New(activeseq.Config{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	if table.IsBurst(0, 0) {
		t.Error("there is a burst before the first request")
	}
	start := kv.Mono(time.Second)
	for _, held := range []time.Duration{0, 20 * time.Millisecond} {
		first := table.BurstAt(start)
		if first.Since != start {
			t.Errorf("the burst of a request at %v began at %v", start, first.Since)
		}
		table.ExtendBurst(held)
		end := start.Add(held + 10*time.Millisecond)
		if b := table.BurstAt(end); b != first || !table.IsBurst(end, first.Number) || table.IsBurst(end, first.Number-1) {
			t.Errorf("held for %v: %+v at its end, %+v at its start", held, b, first)
		}
		end++
		if table.IsBurst(end, first.Number) {
			t.Errorf("held for %v: the burst lasts longer", held)
		}
		if b := table.BurstAt(end); b.Number != first.Number+1 || b.Since != end {
			t.Errorf("held for %v: %+v after %+v", held, b, first)
		}
		start = end.Add(time.Second)
	}
}

// publisher numbers reservations, as a journal whose plane brings them back does.
type publisher struct{ last uint64 }

func (p *publisher) OnReserved(activeseq.ReservationRef) uint64 { p.last++; return p.last }
func (*publisher) OnPrefilled(uint64)                           {}
func (*publisher) OnGrown(uint64, int)                          {}
func (*publisher) OnFreed(uint64)                               {}

// TestSyncDelay: the time until a reservation is back is learned, a longer one soon, and forgotten when none come back.
func TestSyncDelay(t *testing.T) {
	p := &publisher{}
	table, err := activeseq.New(activeseq.Config{BlockSize: 16, Journal: p})
	if err != nil {
		t.Fatal(err)
	}
	now := kv.Mono(0)
	reserve := func(delay time.Duration) time.Duration {
		now = now.Add(time.Second)
		if err := table.Reserve(now, activeseq.AttemptKey{ID: fmt.Sprint(p.last)}, kv.Worker{ID: 1}, activeseq.Demand{PromptTokens: 100}); err != nil {
			t.Fatal(err)
		}
		if delay > 0 {
			table.MarkPublished(now.Add(delay), p.last)
		}
		table.AdvanceTime(now.Add(100 * time.Millisecond))
		return table.SyncDelay()
	}
	for i, c := range []struct{ delay, want time.Duration }{
		{2 * time.Millisecond, 2 * time.Millisecond},
		{4 * time.Millisecond, 3 * time.Millisecond},
		{time.Millisecond, 2875 * time.Microsecond},
		{0, 0},
		{5 * time.Millisecond, 5 * time.Millisecond},
	} {
		if got := reserve(c.delay); got != c.want {
			t.Errorf("%d: after %v the delay is %v, want %v", i, c.delay, got, c.want)
		}
	}
}

// TestLaterIsNoBurst: what other routers place 10 ms after this one does is not placed at the same time, if they hear
// of each other within 3 ms.
func TestLaterIsNoBurst(t *testing.T) {
	const delay = 3 * time.Millisecond
	for _, c := range []struct {
		later time.Duration
		want  float64
	}{{0, 2}, {10 * time.Millisecond, 0}} {
		p := &publisher{}
		table, err := activeseq.New(activeseq.Config{BlockSize: 16, Journal: p})
		if err != nil {
			t.Fatal(err)
		}
		w, now := kv.Worker{ID: 1}, kv.Mono(0)
		for i := range 100 {
			now = now.Add(time.Second)
			if err := table.Reserve(now, activeseq.AttemptKey{ID: fmt.Sprint(i)}, w, activeseq.Demand{PromptTokens: 100}); err != nil {
				t.Fatal(err)
			}
			table.MarkPublished(now.Add(delay), p.last)
			for range 2 {
				table.AdoptReservation(now.Add(c.later+delay), activeseq.Reservation{Worker: w, PromptTokens: 200, PrefillTokens: 200})
			}
		}
		if got := table.BurstAt(now.Add(time.Second)).Ratio; got < c.want-0.1 || got > c.want+0.1 {
			t.Errorf("placed %v later: %.2f requests of others are expected for each one here, want %g", c.later, got, c.want)
		}
	}
}

// TestTakeFinished: adopted prefills which finish are reported once, in order, with their places in the queue.
func TestTakeFinished(t *testing.T) {
	table, err := activeseq.New(activeseq.Config{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	w := kv.Worker{ID: 1}
	first := table.AdoptReservation(0, activeseq.Reservation{Worker: w, PromptTokens: 100, PrefillTokens: 50})
	second := table.AdoptReservation(0, activeseq.Reservation{Worker: w, PromptTokens: 200, PrefillTokens: 200})
	table.AdvanceTime(kv.Mono(time.Second))
	second.MarkPrefilled()
	first.MarkPrefilled()
	first.MarkPrefilled()
	got := table.TakeFinished()
	if len(got) != 2 || got[0].Tokens != 200 || got[0].IsFirst || got[1].Tokens != 50 || !got[1].IsFirst || got[1].At != kv.Mono(time.Second) {
		t.Errorf("%+v", got)
	}
	if again := table.TakeFinished(); len(again) != 0 {
		t.Errorf("%d are reported again", len(again))
	}
}
