package activeseq_test

import (
	"fmt"
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
			u := table.UnheardAt(now)
			if d := u.Requests - c.expect; d < -0.01 || d > 0.01 {
				t.Errorf("%v requests are expected of the others, want %v", u.Requests, c.expect)
			}
			if d := u.Next - c.expect; d < -0.01 || d > 0.01 || u.Mirrored != 0 {
				t.Errorf("%+v: nothing is placed yet, so %v are next", u, c.expect)
			}
			if d := u.Tokens - 200*c.expect; d < -1 || d > 1 {
				t.Errorf("%v tokens are expected of the others, want %v", u.Tokens, 200*c.expect)
			}
			// What is heard is no longer unheard, and the second request of an instant expects the others' second ones.
			if err := table.Reserve(now, activeseq.AttemptKey{ID: "first"}, w, activeseq.Demand{PromptTokens: 100, ExpectedPrefill: time.Second}); err != nil {
				t.Fatal(err)
			}
			if u := table.UnheardAt(now); c.expect > 0 && (u.Requests < 2*c.expect-0.1 || u.Requests > 2*c.expect+0.1) {
				t.Errorf("%v requests are expected after one, want %v", u.Requests, 2*c.expect)
			}
			if u := table.UnheardAt(now); u.Mirrored < c.expect-0.1 || u.Mirrored > c.expect+0.1 || table.BurstPrefillAt(table.RefTo(w)) != time.Second {
				t.Errorf("%+v, %v: the others are not taken to place as this one did", u, table.BurstPrefillAt(table.RefTo(w)))
			}
			for range 2 * c.ratio {
				table.AdoptReservation(now, activeseq.Reservation{Worker: w, PromptTokens: 200, PrefillTokens: 200})
			}
			if u := table.UnheardAt(now); u.Requests > 0.1 {
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
