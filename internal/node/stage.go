package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// stages are services that run until they are stopped, last started first. When
// one ends by itself, the context that start returned ends with its error as the
// cause, and the owner is expected to stop them all.
type stages struct {
	failed context.CancelCauseFunc
	all    []*stage
}

// stage is a set of like services that start and stop together.
type stage struct {
	stop context.CancelFunc
	done sync.WaitGroup
	mu   struct {
		sync.Mutex
		errs []error
	}
}

// newStages returns an empty set and a context that ends with ctx or when a
// service fails.
func newStages(ctx context.Context) (*stages, context.Context) {
	ctx, failed := context.WithCancelCause(ctx)
	return &stages{failed: failed}, ctx
}

// errEnded is the failure of a service that returned before it was asked to.
var errEnded = errors.New("ended by itself")

// start runs the services as one stage. They get a context that only stop ends.
func (s *stages) start(ctx context.Context, name string, runs ...func(context.Context) error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	st := &stage{stop: stop}
	s.all = append(s.all, st)
	for _, run := range runs {
		st.done.Go(func() {
			err := run(life)
			if err == nil && life.Err() == nil {
				err = errEnded
			}
			if err == nil {
				return
			}
			err = fmt.Errorf("%s: %w", name, err)
			st.mu.Lock()
			st.mu.errs = append(st.mu.errs, err)
			st.mu.Unlock()
			s.failed(err)
		})
	}
}

// stop ends the stages, the last one first, waiting for each, and returns their
// errors.
func (s *stages) stop() error {
	var errs []error
	for i := len(s.all) - 1; i >= 0; i-- {
		st := s.all[i]
		st.stop()
		st.done.Wait()
		errs = append(errs, st.mu.errs...)
	}
	s.all = nil
	s.failed(nil)
	return errors.Join(errs...)
}

// after is a service that begins once another has come to a point, if it does.
func after(point <-chan struct{}, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if reached(ctx, point) != nil {
			return nil // stopped before it began
		}
		return run(ctx)
	}
}

// reached waits for a point, or returns with ctx's cause.
func reached(ctx context.Context, point <-chan struct{}) error {
	select {
	case <-point:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
