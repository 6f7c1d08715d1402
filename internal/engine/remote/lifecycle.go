package remote

import (
	"context"
	"errors"
	"sync"

	"penstock/core/fault"
)

// lifecycle makes calls wait until the engine's adapter runs, and ends them when it stops. It goes from
// waiting (before run) to running (until run's ctx ends) to stopped.
type lifecycle struct {
	running chan struct{} // closed when it starts, after ctx was set
	ctx     context.Context
}

func newLifecycle() *lifecycle { return &lifecycle{running: make(chan struct{})} }

func stoppedError() error {
	return fault.New(fault.Unavailable, "the engine's adapter has stopped; another worker can serve the request")
}

// enterCall waits until the adapter runs. The context that it returns ends with ctx and when the adapter
// stops; leave must be called.
func (l *lifecycle) enterCall(ctx context.Context) (inside context.Context, leave func(), err error) {
	select {
	case <-l.running:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case l.ctx.Err() != nil:
		return nil, nil, stoppedError()
	}
	inside, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(stoppedError()) })
	return inside, func() { stop(); cancel(nil) }, nil
}

// run admits calls and runs tasks until ctx ends, then ends the calls, and returns after the tasks. It is
// called once.
func (l *lifecycle) run(ctx context.Context, tasks ...func(context.Context)) {
	l.ctx = ctx
	close(l.running)
	var wg sync.WaitGroup
	for _, task := range tasks {
		wg.Go(func() { task(ctx) })
	}
	wg.Wait()
	<-ctx.Done()
}

// callError returns the error of a call: that of the stopped adapter if this is the cause.
func callError(inside context.Context, err error) error {
	if f := (*fault.Error)(nil); inside.Err() != nil && errors.As(context.Cause(inside), &f) {
		return f
	}
	return err
}
