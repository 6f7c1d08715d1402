package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{Min: 100 * time.Millisecond, Max: 500 * time.Millisecond}
		for round := range 3 {
			jitter := time.Duration(0)
			for i, least := range []time.Duration{100, 200, 400, 500, 500, 500} {
				least *= time.Millisecond
				began := time.Now()
				if err := b.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				if took < least || took > least*3/2 {
					t.Errorf("round %d: wait %d is %v, want %v and up to a half more", round, i, took, least)
				}
				jitter += took - least
			}
			if jitter == 0 {
				t.Error("nothing is random")
			}
			b.Reset()
		}
	})
}

func TestEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		b := Backoff{Min: time.Hour, Max: time.Hour}
		if err := b.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := SleepContext(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), 0
		err := Poll(t.Context(), time.Second, func() bool { asked++; return asked == 3 })
		if took := time.Since(began); err != nil || took != 2*time.Second {
			t.Errorf("the third answer came after %v (%v)", took, err)
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, cause)
		defer cancel()
		if err := Poll(ctx, time.Second, func() bool { return false }); !errors.Is(err, cause) {
			t.Errorf("the end of the context is %v", err)
		}
	})
}
