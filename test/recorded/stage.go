package main

import (
	"context"
	"errors"
)

// stage is a set of services that start and stop together.
type stage struct {
	stop context.CancelFunc
	ends chan error // has room for the result of each
}

// start runs services until the stage ends. One that fails is reported at once;
// the end of ctx is not theirs.
func start(ctx context.Context, failed context.CancelCauseFunc, runs ...func(context.Context) error) *stage {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	st := &stage{stop: stop, ends: make(chan error, len(runs))}
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

// end stops the services and waits for them.
func (st *stage) end() (err error) {
	st.stop()
	for range cap(st.ends) {
		err = errors.Join(err, <-st.ends)
	}
	return err
}
