// Package bounded limits the resources used by concurrent requests: memory, for which requests wait
// in order ([MemoryBudget]), goroutines ([ForEach]), and what is kept for later ones ([Cache]).
package bounded

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ForEach calls do with each number below n, with at most hands calls at a time. After the first
// error it cancels ctx for the other calls and starts no more. It waits for all started calls and
// returns the first error. A panic in do becomes its error.
func ForEach(ctx context.Context, n, hands int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan int, n)
	for i := range n {
		queue <- i
	}
	close(queue)
	hands = min(n, max(hands, 1))
	done := make(chan error, hands)
	for range hands {
		go func() { // the loop below waits for it
			done <- RecoverPanic(func() error {
				for i := range queue {
					if err := ctx.Err(); err != nil {
						return err
					}
					if err := do(ctx, i); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	var first error
	for range hands {
		if err := <-done; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// RecoverPanic calls f and converts a panic in it to an error, so that a bug fails only the request
// in which it occurs. The panic value may contain part of a prompt, so only the runtime's own
// panics are kept.
func RecoverPanic(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("panic: %w\n%s", p, debug.Stack())
		default:
			err = fmt.Errorf("panic: %T\n%s", p, debug.Stack())
		}
	}()
	return f()
}
