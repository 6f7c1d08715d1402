package main

import (
	"context"
	"errors"
)

// serviceStage is a set of services which start and stop together.
type serviceStage struct {
	stop context.CancelFunc
	ends chan error // has room for the result of each
}

// startStage runs services until the stage ends. A failing one is reported at once; ctx does not cancel them.
func startStage(ctx context.Context, failed context.CancelCauseFunc, runs ...func(context.Context) error) *serviceStage {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	st := &serviceStage{stop: stop, ends: make(chan error, len(runs))}
	for _, run := range runs {
		go func() {
			err := run(life)
			if err != nil {
				failed(err)
			}
			st.ends <- err
		}()
	}
	return st
}

// endStage stops the services and waits for them.
func (st *serviceStage) endStage() (err error) {
	st.stop()
	for range cap(st.ends) {
		err = errors.Join(err, <-st.ends)
	}
	return err
}
