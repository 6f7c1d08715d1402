package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// stages are services which run until they are stopped, last started first. When one ends by itself, the
// context which start returned ends with its error as the cause, and the owner must stop them all.
type stages struct {
	failed context.CancelCauseFunc
	list   []*stage
}

// stage is a set of similar services which start and stop together.
type stage struct {
	stop context.CancelFunc
	done sync.WaitGroup
	mu   struct {
		sync.Mutex
		errs []error
	}
}

// newStages returns an empty set and a context that ends with ctx or when a service fails.
func newStages(ctx context.Context) (*stages, context.Context) {
	ctx, failed := context.WithCancelCause(ctx)
	return &stages{failed: failed}, ctx
}

// errEnded is the failure of a service that returned before it was stopped.
var errEnded = errors.New("ended by itself")

// startStage runs the services as one stage. Only stop ends their context.
func (s *stages) startStage(ctx context.Context, name string, runs ...func(context.Context) error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	st := &stage{stop: stop}
	s.list = append(s.list, st)
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

// stopAll ends the stages, the last one first, waiting for each, and returns their errors.
func (s *stages) stopAll() error {
	var errs []error
	for i := len(s.list) - 1; i >= 0; i-- {
		st := s.list[i]
		st.stop()
		st.done.Wait()
		errs = append(errs, st.mu.errs...)
	}
	s.list = nil
	s.failed(nil)
	return errors.Join(errs...)
}

// runAfter returns a service that starts run once point is closed.
func runAfter(point <-chan struct{}, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if awaitClosed(ctx, point) != nil {
			return nil // stopped before it started
		}
		return run(ctx)
	}
}

// awaitClosed waits until point is closed, or returns with ctx's cause.
func awaitClosed(ctx context.Context, point <-chan struct{}) error {
	select {
	case <-point:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
