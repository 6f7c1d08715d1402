package frontend

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

// TestBudget: who waits is served in the order of coming, a share larger than all
// there is gets all, and who gives up leaves nothing reserved.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{limit: 10}
		var mu sync.Mutex
		var order []int
		note := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, n)
		}
		wait := func(ctx context.Context, n int) {
			got, err := b.wait(ctx, n)
			if err != nil {
				note(-n)
				return
			}
			if got != min(n, 10) {
				t.Errorf("%d reserved for %d", got, n)
			}
			note(n)
		}
		if !b.take(6) || b.take(5) {
			t.Fatal("6 of 10 fit, and 5 more do not")
		}
		leaves, leave := context.WithCancel(t.Context())
		for _, n := range []int{7, 99, 1} {
			ctx := t.Context()
			if n == 99 {
				ctx = leaves
			}
			go wait(ctx, n)
			synctest.Wait()
		}
		if len(order) > 0 {
			t.Fatalf("%v did not wait", order)
		}
		b.give(6)
		synctest.Wait()
		leave()
		synctest.Wait()
		if len(order) != 3 || order[0] != 7 || order[1]+order[2] != 1-99 {
			t.Errorf("%v", order)
		}
		if b.inUse() != 8 {
			t.Errorf("%d in use", b.inUse())
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := b.wait(ended, 9); !errors.Is(err, context.Canceled) || b.inUse() != 8 {
			t.Errorf("%v, %d in use", err, b.inUse())
		}
		b.give(8)
	})
}
