package bounded

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestMemory: waits are served in order of arrival, a reservation above the limit gets the limit,
// and a canceled wait leaves nothing reserved.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemoryBudget(10)
		var mu sync.Mutex
		var order []int64
		note := func(n int64) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, n)
		}
		wait := func(ctx context.Context, n int64) {
			got, err := m.Reserve(ctx, n)
			if err != nil {
				note(-n)
				return
			}
			if got != min(n, 10) {
				t.Errorf("%d reserved for %d", got, n)
			}
			note(n)
		}
		if !m.TryReserve(6) || m.TryReserve(5) {
			t.Fatal("6 of 10 fit, and 5 more do not")
		}
		leaves, leave := context.WithCancel(t.Context())
		for _, n := range []int64{7, 99, 1} {
			ctx := t.Context()
			if n == 99 {
				ctx = leaves
			}
			go wait(ctx, n)
			synctest.Wait()
		}
		if len(order) > 0 || m.Waiting() != 3 {
			t.Fatalf("%v did not wait", order)
		}
		m.Release(6)
		synctest.Wait()
		leave()
		synctest.Wait()
		if len(order) != 3 || order[0] != 7 || order[1]+order[2] != 1-99 {
			t.Errorf("%v", order)
		}
		if m.Used() != 8 || m.Waiting() != 0 {
			t.Errorf("%d are used, %d wait", m.Used(), m.Waiting())
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := m.Reserve(ended, 9); !errors.Is(err, context.Canceled) || m.Used() != 8 {
			t.Errorf("%v, %d are used", err, m.Used())
		}
		m.Release(8)
	})
}

// TestEach: all calls run, with a bounded number at a time, and an error cancels the rest.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done, now, most atomic.Int32
		open := make(chan struct{})
		go func() {
			synctest.Wait()
			most.Store(now.Load())
			close(open)
		}()
		err := ForEach(t.Context(), 10, 3, func(context.Context, int) error {
			now.Add(1)
			defer now.Add(-1)
			<-open
			done.Add(1)
			return nil
		})
		if err != nil || done.Load() != 10 || most.Load() != 3 {
			t.Errorf("%d of 10 were done, %d at a time: %v", done.Load(), most.Load(), err)
		}
	})
	bad := errors.New("bad")
	for name, fails := range map[string]func() error{"": func() error { return bad }, "panic: *errors.errorString": func() error { panic(bad) }} {
		var begun atomic.Int32
		err := ForEach(t.Context(), 10, 2, func(ctx context.Context, i int) error {
			if begun.Add(1) == 1 {
				return fails()
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || !strings.HasPrefix(err.Error(), name) || name == "" && !errors.Is(err, bad) || begun.Load() > 2 {
			t.Errorf("%d were begun: %.60v", begun.Load(), err)
		}
	}
	if err := ForEach(t.Context(), 0, 3, nil); err != nil {
		t.Errorf("nothing to do: %v", err)
	}
}
