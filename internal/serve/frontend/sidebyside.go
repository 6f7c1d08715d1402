package frontend

import "context"

// atOnce bounds the parts of one request that are with workers at one time, so that
// a request of thousands leaves room in their queues.
const atOnce = 16

// sideBySide calls do with each number below n, as many at a time as there are
// hands, until all have returned nil or one has failed: then ctx ends for the
// others, and no further one begins. It returns the first error, when all that it
// started have ended.
func sideBySide(ctx context.Context, n, hands int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan int, n)
	for i := range n {
		queue <- i
	}
	close(queue)
	hands = min(n, hands)
	done := make(chan error, hands)
	for range hands {
		go func() {
			done <- contained(func() error {
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
