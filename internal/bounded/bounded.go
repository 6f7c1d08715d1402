// Package bounded keeps the work of many requests within what there is for it: memory, for which
// requests wait in order ([Memory]), and hands ([Each]).
package bounded

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Each calls do with each number below n, as many at a time as there are hands, until all have
// returned nil or one has failed: then ctx ends for the others, and no further one begins. It
// returns the first error, when all that it started have ended. A panic in do is its error.
func Each(ctx context.Context, n, hands int, do func(ctx context.Context, i int) error) error {
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
			done <- Contain(func() error {
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

// Contain calls f and makes a panic in it an error: a defect is the failure of the request that it
// shows in, not of those beside it. The value of the panic may be part of a prompt, so that only
// what the runtime itself panics with is kept.
func Contain(f func() error) (err error) {
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
